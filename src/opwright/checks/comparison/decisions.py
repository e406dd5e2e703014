"""Which decisions of a computation rounding cannot change: those on numbers that follow exactly from exact arguments.

Runs with errors make every argument a little wrong, so that ``x.round()`` of 0.5 is 0 in one and 1 in another, and
either is right. That is meant where 0.5 was computed. Where an argument is 0.5, only 0 is right. So beside the numbers
with errors goes an exact twin, as long as each step is exact in float32, whatever way a kernel takes: sums,
differences, products, divisions by powers of two. Roundings and comparisons are decided by the twins, if all operands
have one. Where only some elements are exact, as the difference of equal numbers is, only these are decided; a twin is
NaN at the others.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from opwright import tree
from opwright.internals.registration import writes_arguments

__all__ = ["Decisions"]

Run = Callable[[Any, Any, Any], Any]
# Operations that decide.
_DECIDES = frozenset({
    "bucketize", "ceil", "eq", "floor", "frac", "ge", "gt", "hardshrink", "heaviside", "le", "lt", "ne", "round",
    "searchsorted", "sgn", "sign", "signbit", "threshold", "trunc",
})  # fmt: skip
# Of these, those whose results do not belong to single elements.
_SEARCHES = frozenset({"bucketize", "searchsorted"})
# Operations that compute: exact on numbers of a few bits.
_COMPUTES = frozenset({"add", "cumsum", "div", "mul", "rsub", "square", "sub", "sum"})
# Operations that move and choose, so that they round nothing.
_MOVES = frozenset({
    "_to_copy", "abs", "amax", "amin", "cat", "clamp", "clamp_max", "clamp_min", "clone", "contiguous", "detach",
    "flip", "gather", "index", "index_select", "masked_fill", "maximum", "minimum", "neg", "relu", "repeat", "roll",
    "scalar_tensor", "stack", "where",
})  # fmt: skip


class Decisions:
    """The exact twins of what a computation has computed until now."""

    def __init__(self) -> None:
        self._twins: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def know(self, tensor: torch.Tensor, twin: torch.Tensor) -> None:
        """State what a tensor is without errors, if that has no more bits than float32; of single elements, few."""
        if not _fits_float32(twin):
            twin = torch.where(_has_few_bits(twin), twin, torch.nan)
            if bool(twin.isnan().all()):
                return
        self._twins[id(tensor)] = (weakref.ref(tensor), twin)

    def decided(self, run: Run, func: Any, args: Any, kwargs: Any, out: Any) -> Any:
        """The result of an operation: what it gives for the twins of its operands, if that is a decision.

        Args:
            run: runs the operation on other operands.
            out: the result with errors.
        """
        if writes_arguments(func):
            self._twins.clear()  # of views, too, of which nothing is known here
            return out
        name = func.overloadpacket.__name__
        if not self._twins or not isinstance(out, torch.Tensor) or not (_follows_exactly(func) or name in _DECIDES):
            return out
        exact = self._on_twins(run, func, args, kwargs)
        if exact is None:
            return out
        if name in _DECIDES or not exact.is_floating_point():
            known = self._is_known(name, args, kwargs, out)
            if known is None:
                return out
            out = torch.where(known, exact, out)
            exact = torch.where(known, exact, torch.nan) if exact.is_floating_point() else exact
        if exact.is_floating_point():
            self.know(out, exact)
        return out

    def _is_known(self, name: str, args: Any, kwargs: Any, out: torch.Tensor) -> torch.Tensor | None:
        """Where the twins of all operands are known; None if they are not, where that cannot be told by element."""
        known = torch.ones((), dtype=torch.bool)
        for operand in tree.tensors([args, kwargs]):
            twin = self._twin(operand)
            if twin is None or not bool((unknown := twin.isnan()).any()):
                continue
            if name in _SEARCHES or unknown.dim() > out.dim():
                return None
            known = known & ~unknown
        return known.expand(out.shape) if known.dim() <= out.dim() else None

    def _on_twins(self, run: Run, func: Any, args: Any, kwargs: Any) -> Any:
        operands = [t for t in tree.tensors([args, kwargs]) if t.is_floating_point() or t.is_complex()]
        if not operands or any(self._twin(t) is None for t in operands):
            return None
        twins = tree.map_tensors(lambda t: t if (twin := self._twin(t)) is None else twin, (list(args), kwargs))
        name = func.overloadpacket.__name__
        if name in _COMPUTES and not _is_exact_arithmetic(name, *twins):
            return None
        return run(func, *twins)

    def _twin(self, tensor: torch.Tensor) -> torch.Tensor | None:
        known = self._twins.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None


def _follows_exactly(func: Any) -> bool:
    return bool(func.is_view) or func.overloadpacket.__name__ in _MOVES | _COMPUTES


def _is_exact_arithmetic(name: str, args: Any, kwargs: Any) -> bool:
    """Whether numbers are those that a kernel has in float32, and a divisor is a power of two."""
    numbers = [v for v in (*args, *kwargs.values()) if isinstance(v, float)]
    if not all(_fits_float32(torch.tensor(v, dtype=torch.float64)) for v in numbers):
        return False
    if name != "div":
        return True
    divisor = torch.as_tensor(args[1]).double()
    return "rounding_mode" not in kwargs and bool((torch.frexp(divisor).mantissa.abs() == 0.5).all())


# So few bits that numbers are exact whatever way a kernel takes.
_FEW_BITS = 16


def _has_few_bits(t: torch.Tensor) -> torch.Tensor:
    scaled = torch.frexp(t.double()).mantissa * 2**_FEW_BITS
    few: torch.Tensor = t.isfinite() & (scaled == scaled.round())
    return few


def _fits_float32(t: torch.Tensor) -> bool:
    return bool(((t.float().double() == t) | ~t.isfinite()).all())
