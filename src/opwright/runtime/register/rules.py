"""An operator's rules besides its kernels: its fake, gradient, vmap rule and FLOPs; each derived from the
reference, or custom.

This file does not depend on kernels, so that operators of shipped packages (``package/shipped``) use the same rules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from opwright.contract import derive
from opwright.contract.binding import bind
from opwright.contract.contract import Contract
from opwright.contract.fingerprint import fingerprint
from opwright.errors import KernelError
from opwright.runtime.register.backward_operator import BackwardOperator
from opwright.runtime.register.gradients import DerivedGradient, Gradient, Select, custom_gradient

__all__ = ["Rules"]


class Rules:
    """The rules of one operator. ``custom`` has the registered functions by part.

    Args:
        select: finds what a custom ``setup_context`` saves, for gradients without an ``autograd.Function``.
    """

    def __init__(self, contract: Contract, select: Select | None = None) -> None:
        self.contract = contract
        self._saves_outputs = contract.signature.visible < len(contract.signature.returns)
        self._select = select
        self.custom: dict[str, Callable[..., Any]] = {}
        self.gradient: Gradient = DerivedGradient(contract)
        self._setup_context: Callable[..., None] | None = None

    def replace(self, part: str, function: Callable[..., Any]) -> None:
        """Replace a derived rule by a custom one. ``part``: fake, vmap, flops or sharding."""
        if not callable(function):
            raise KernelError(
                f"{self.contract.qualname}: register_{part} must be given a callable, got {type(function).__name__}"
            )
        self.custom[part] = function

    def replace_gradient(self, backward: Callable[..., Any], setup_context: Callable[..., None] | None) -> None:
        """Replace the derived gradient by a custom one."""
        self.replace("autograd", backward)
        self._setup_context = setup_context
        self.gradient = custom_gradient(self.contract, backward, setup_context, self._select)

    @property
    def fingerprint(self) -> list[str]:
        """Digests of the custom rules."""
        rules = [f"{part}={fingerprint(function)}" for part, function in sorted(self.custom.items())]
        return [*rules, fingerprint(self._setup_context)]

    def copy_from(self, other: Rules, backward_operator: Callable[[Any], Any]) -> None:
        """Copy another operator's custom rules.

        Args:
            backward_operator: returns this operator's backward operator from the other's, if that has one.
        """
        custom = dict(other.custom)
        backward = custom.pop("autograd", None)
        self.custom.update(custom)
        if isinstance(backward, BackwardOperator):
            backward = BackwardOperator(self.contract, backward_operator(backward.operator))
            self.replace_gradient(backward, backward.setup_context)
        elif backward is not None:
            self.replace_gradient(backward, other._setup_context)

    def state(self) -> tuple[Any, ...]:
        """The state for ``restore`` in another process."""
        return dict(self.custom), self._setup_context

    def restore(self, state: tuple[Any, ...]) -> None:
        custom, setup_context = state
        self.custom.update(custom)
        if "autograd" in custom:
            self.replace_gradient(custom["autograd"], setup_context)

    # -- the current rules ------------------------------------------------------------------------------------

    def fake(self, arguments: Sequence[Any]) -> Any:
        """Fake outputs for arguments (fake or meta tensors) in signature order."""
        bind(self.contract, arguments)
        if "fake" in self.custom:
            return self.contract.signature.call(self.custom["fake"], arguments)
        return self.contract.pack(derive.fake_outputs(self.contract, arguments))

    def setup_context(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None:
        """Save what the backward needs, for an ``autograd.Function`` that returns all of the operator's outputs."""
        self.gradient.save(ctx, arguments, output)
        if self._saves_outputs:
            saved = self.contract.unpack(output)[self.contract.signature.visible :]
            ctx.mark_non_differentiable(*(getattr(ctx, "non_differentiable", None) or ()), *saved)

    def vmap(self, info: Any, in_dims: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, Any]:
        """The outputs of a batched call, and the batch dim of each."""
        if "vmap" in self.custom:
            split = len(self.contract.signature.positional)
            rule = functools.partial(self.custom["vmap"], info, tuple(in_dims[:split]))
            result: tuple[Any, Any] = self.contract.signature.call(rule, arguments)
            return result
        return derive.batch_rule(self.contract, in_dims, arguments)

    def count_flops(self, arguments: Sequence[Any]) -> int:
        """Floating-point operations of one call."""
        if "flops" in self.custom:
            return int(self.contract.signature.call(self.custom["flops"], arguments))
        return derive.flops(self.contract, arguments)
