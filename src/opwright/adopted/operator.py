"""The operator that ``ow.adopt`` returns: calls run what exists, with its own schema, fake, gradient and kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opwright import tree
from opwright.adopted.existing import FUNCTION, OVERRIDE, Existing
from opwright.contract.contract import Contract
from opwright.internals.dispatch import has_memory
from opwright.results import Origin, Part
from opwright.runtime.base_op import BaseOp
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op

__all__ = ["FALLBACK", "KERNEL", "AdoptedOp", "kernel_source"]

# The name of its kernel; an override may have another, for what its condition leaves out.
KERNEL, FALLBACK = "adopted", "fallback"
_NOT_DERIVED = "it has what its author has registered, and opwright adds nothing"


class AdoptedOp(Op):
    """An operator that exists already. Nothing is registered with torch: ``overload`` is what was adopted."""

    _brings_others = False

    def __init__(self, contract: Contract, existing: Existing) -> None:
        self._existing = existing
        super().__init__(contract)
        self.adopted = existing.name
        self.has_fake = existing.is_operator
        if existing.kind == OVERRIDE:
            contract.own_inputs.not_applicable = "by the condition of the override, the other implementation runs"
        self.may_share_memory = existing.schema.returns_alias if existing.schema else True

    def _register(self) -> Any:
        return self._existing.call

    def _make_functional(self) -> BaseOp[..., Any] | None:
        return None if self.contract.signature.mutated else self

    def _call(self, arguments: tuple[Any, ...]) -> Any:
        if self._only == REFERENCE:
            return self.contract.pack(self.contract.traceable(arguments))
        kernel = self.kernels.get(KERNEL)
        if kernel is not None and all(map(has_memory, tree.tensors(list(arguments)))):
            return kernel.load()(*arguments)
        return self.contract.signature.call(self._existing, arguments)

    @property
    def parts(self) -> dict[str, Part]:
        own, how = dict(super().parts), f"{self.adopted}'s own"
        for name in ("schema", "fake", "autograd"):
            if own[name].origin is not Origin.MISSING:
                own[name] = Part(name, Origin.CUSTOM, how)
        if not self._existing.is_operator:
            own["schema"] = Part("schema", Origin.MISSING, f"{self.adopted} is not an operator of torch")
            own["fake"] = Part("fake", Origin.MISSING, "torch traces its operations")
        if self._existing.kind == OVERRIDE:
            for name in ("fake", "autograd"):
                own[name] = Part(name, Origin.MISSING, "the operator's own, which an override leaves as it is")
        if self.contract.signature.mutated:
            own["autograd"] = Part("autograd", Origin.MISSING, "it writes its arguments")
        for name in ("vmap", "decomposition", "sharding"):
            own[name] = Part(name, Origin.MISSING, _NOT_DERIVED)
        return own

    def _by_value(self) -> tuple[Any, ...]:
        _, _, state = super()._by_value()
        return type(self), (self.contract, self._existing), state

    def __repr__(self) -> str:
        return f"<adopted operator {self.contract.call_form}>"


def kernel_source(existing: Existing, language: str) -> Callable[..., Any]:
    """What its kernel calls. A launcher of Triton or CUDA kernels is the function itself, in which they are found."""
    if language != "python" and existing.kind in (FUNCTION, OVERRIDE) and existing.function is not None:
        return existing.function

    def adopted(*args: Any, **kwargs: Any) -> Any:
        return existing(*args, **kwargs)

    if existing.is_operator and existing.function is not None:
        adopted.__wrapped__ = existing.function  # type: ignore[attr-defined]  # its source, and its parameters
    return adopted
