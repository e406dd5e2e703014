"""What an operator does besides running: its fake, gradient, vmap rule and FLOPs; derived from the meaning, or written
by hand under ``torch.library``'s own names.

Knows no kernels, so that an operator that was shipped in a package of its own (``package/shipped``) follows the same
rules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from opwright.contract import derive
from opwright.contract.binding import bind
from opwright.contract.contract import Contract
from opwright.errors import KernelError
from opwright.runtime import registration
from opwright.runtime.backward import AuthorsContext, derived_backward, save_values
from opwright.runtime.paired import PairedBackward

__all__ = ["Rules", "RulesThatSave"]


class Rules:
    """The parts of an operator that can be overridden, and what each does if it was not."""

    contract: Contract
    _overrides: dict[str, Callable[..., Any]]
    _setup_context: Callable[..., Any] | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _changed(self) -> None:
        """A part is another one now."""
        raise NotImplementedError

    # -- written by hand ---------------------------------------------------------------------------------

    def register_fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Replace the derived fake: takes the operator's arguments, returns tensors like its outputs."""
        return self._override("fake", function)

    def register_autograd(
        self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """Replace the derived gradient, with the meaning of ``torch.library.register_autograd``.

        Args:
            backward: ``backward(ctx, *grads)``; returns a gradient, or None, for each positional argument. Or an
                operator with a contract and kernels of its own, whose parameters say what it needs: the gradients of
                the outputs, then by name arguments and outputs (``result``, ``result0``, …; ``runtime/paired.py``).
            setup_context: ``setup_context(ctx, inputs, output)``, with ``keyword_only_inputs`` besides if the
                operator has keyword-only arguments; saves on ``ctx`` what the backward needs. ``output`` has the
                outputs marked ``ow.saved`` too.

        Raises:
            SignatureMismatchError: an operator's parameters or outputs are not those of a backward of this one.
        """
        if isinstance(backward, Rules):
            if setup_context is not None:
                raise KernelError(
                    f"{self.contract.qualname}: register_autograd was given the operator {backward.contract.qualname} "
                    "and a setup_context",
                    fix="drop setup_context: what is saved follows from the operator's parameters",
                )
            backward = PairedBackward(self.contract, backward)
            setup_context = backward.setup_context
        self._setup_context = setup_context
        self._override("autograd", backward)

    def register_vmap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Replace the derived vmap rule: ``function(info, in_dims, *args)`` returns ``(output, out_dims)``."""
        return self._override("vmap", function)

    def register_flops(self, function: Callable[..., int]) -> Callable[..., int]:
        """Replace the derived FLOP count: takes the operator's arguments (tensors), returns a number.

        ``torch.utils.flop_counter.FlopCounterMode`` shows it.
        """
        return self._override("flops", function)

    def register_sharding(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Replace the derived DTensor placements, as ``torch.distributed.tensor.experimental.register_sharding`` does.

        Args:
            function: takes the operator's arguments (tensors as DTensor's descriptions of them); returns a list of
                (output placements, argument placements) that are acceptable, None for an argument that is no tensor.
        """
        self._override("sharding", function)
        registration.shard(self.contract, function)
        return function

    def _override(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(function):
            raise KernelError(f"{self.contract.qualname}: register_{part} was given {type(function).__name__}")
        self._overrides[part] = function
        self._changed()
        return function

    # -- what registration asks for ------------------------------------------------------------------------

    def fake(self, arguments: Sequence[Any]) -> Any:
        bind(self.contract, arguments)
        if "fake" in self._overrides:
            return self.contract.signature.call(self._overrides["fake"], arguments)
        return self.contract.pack(derive.fake_outputs(self.contract, arguments))

    def setup_context(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None:
        """What ``torch.autograd.Function`` calls so, where all outputs are the function's."""
        self.keep(ctx, arguments, output)

    def keep(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None:
        """Keep on ``ctx`` what the backward needs."""
        if "autograd" not in self._overrides:
            save_values(ctx, arguments)
        elif self._setup_context is not None:
            if self.contract.signature.keyword_only:
                inputs, named = self.contract.signature.split(arguments)
                self._setup_context(ctx=ctx, inputs=inputs, output=output, keyword_only_inputs=named)
            else:
                self._setup_context(ctx=ctx, inputs=tuple(arguments), output=output)

    def backward(self, ctx: Any, grads: Sequence[Any]) -> Sequence[Any]:
        if "autograd" not in self._overrides:
            return derived_backward(self.contract, ctx, grads)
        found = self._overrides["autograd"](ctx, *grads)
        return found if isinstance(found, tuple) else (found,)

    def batch(self, info: Any, in_dims: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, Any]:
        if "vmap" in self._overrides:
            split = len(self.contract.signature.positional)
            rule = functools.partial(self._overrides["vmap"], info, tuple(in_dims[:split]))
            result: tuple[Any, Any] = self.contract.signature.call(rule, arguments)
            return result
        return derive.batch_rule(self.contract, in_dims, arguments)

    def count_flops(self, arguments: Sequence[Any], output: Any = None) -> int:
        """Floating-point operations of one call: the hand-written formula, or counted on the meaning."""
        if "flops" in self._overrides:
            return int(self.contract.signature.call(self._overrides["flops"], arguments))
        return derive.flops(self.contract, arguments)


class RulesThatSave(Rules):
    """Those of an operator with outputs for its backward (``ow.saved``), which its caller does not get."""

    def keep(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None:
        """Keep the arguments besides what the author keeps: no gradient flows through what is saved, so that a
        derivative of a hand-written backward would miss terms. Where one is asked for, the meaning gives it."""
        if "autograd" not in self._overrides:
            super().keep(ctx, arguments, output)
        else:
            author = AuthorsContext(ctx)
            super().keep(author, arguments, output)
            author.keep(arguments)

    def setup_context(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None:
        self.keep(ctx, arguments, output)
        hidden = self.contract.unpack(output)[self.contract.signature.visible :]
        ctx.mark_non_differentiable(*(getattr(ctx, "non_differentiable", None) or ()), *hidden)

    def backward(self, ctx: Any, grads: Sequence[Any]) -> Sequence[Any]:
        if "autograd" not in self._overrides or torch.is_grad_enabled():
            return derived_backward(self.contract, ctx, grads)
        return super().backward(AuthorsContext.in_backward(ctx), grads[: self.contract.signature.visible])
