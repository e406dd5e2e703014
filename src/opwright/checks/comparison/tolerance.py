"""The allowed difference of a correct kernel from the reference.

The reference is computed twice: in float64 (``exact``) and in the case's own dtype (``rounded``). With eps the
dtype's unit roundoff and K the number of operations behind one output element, an element may be off by

    eps · (4 + √K) · (|exact| + m) + 4 · e

where m is the mean magnitude of the output (cancellation is between numbers of that size) and e
the largest error of the reference itself in that dtype. √K is the expected growth of rounding errors
that are independent (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 2.8).

If that is not enough, the reference's condition is added: how far the exact result moves when every input and
intermediate result has a relative error of eps · (4 + √K) (``values._conditioning``). exp(40 x), or a difference that
cancels, magnifies the rounding errors of any correct kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from opwright.results import ErrorHistogram

__all__ = ["ErrorSizes", "allowed_error", "describe_difference", "discrete_choices", "first_difference"]


def allowed_error(exact: torch.Tensor, rounded: torch.Tensor, dtype: torch.dtype, operations: int) -> torch.Tensor:
    """The allowed absolute error of each element; 0 for outputs that are not floating."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.zeros(exact.shape, dtype=torch.float64)
    size = exact.abs().double()
    finite = size[torch.isfinite(size)]
    typical = float(finite.mean()) if finite.numel() else 0.0
    own = (rounded.to(exact.dtype) - exact).abs().double()
    own = own[torch.isfinite(own)]
    own_error = float(own.max()) if own.numel() else 0.0
    unit = torch.finfo(dtype).eps
    tolerance = unit * (4 + math.sqrt(operations)) * (size + typical) + 4 * own_error
    return torch.where(torch.isfinite(tolerance), tolerance, torch.zeros_like(tolerance))


def first_difference(
    got: torch.Tensor, exact: torch.Tensor, rounded: torch.Tensor, tolerance: torch.Tensor
) -> torch.Tensor:
    """A mask of the elements that are wrong. NaN equals NaN; an infinity may also be the rounded reference's."""
    wide = got.to(exact.dtype)
    close = (wide - exact).abs().double() <= tolerance
    same = (wide == exact) | (got == rounded) | (wide.isnan() & (exact.isnan() | rounded.isnan()))
    return ~(close | same)


class ErrorSizes:
    """Counts errors by their share of the allowed error: in doubling bins up to 1, and above 1."""

    _EDGES = (0.0, *(2.0**-p for p in range(8, -1, -1)), 2.0)

    def __init__(self) -> None:
        self._inner = torch.tensor(self._EDGES[1:-1], dtype=torch.float64)
        self._counts = torch.zeros(len(self._EDGES) - 1, dtype=torch.int64)

    def count(self, error: torch.Tensor, tolerance: torch.Tensor, wrong: torch.Tensor) -> None:
        """Count absolute errors with their tolerances, element by element. Exactly the wrong elements are above 1
        (an expected NaN is not an error)."""
        share = (error / tolerance.clamp_min(torch.finfo(torch.float64).tiny)).nan_to_num(nan=0.0)
        share = torch.where(wrong, torch.inf, share.clamp_max(1.0))
        self._counts += torch.bincount(torch.bucketize(share.flatten(), self._inner), minlength=len(self._counts))

    def histogram(self) -> ErrorHistogram | None:
        """The histogram; None if nothing was counted, as for integers."""
        if not int(self._counts.sum()):
            return None
        return ErrorHistogram(self._EDGES, tuple(self._counts.tolist()), "share of the allowed error")


def discrete_choices(
    exact: torch.Tensor, rerun: Callable[[float], list[torch.Tensor]], dtype: torch.dtype | None
) -> list[torch.Tensor]:
    """Every result that rounding of the inputs could explain, for an integer output of floating inputs.

    An argmin between two distances that agree to the last bits may choose either. The reference is run
    again with inputs and intermediate results off by a few units of roundoff; those results are accepted too.
    """
    if dtype is None or not dtype.is_floating_point:
        return [exact]
    return [exact, *rerun(8 * torch.finfo(dtype).eps)]


def describe_difference(got: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor) -> str:
    """A text for messages: where two tensors differ, how often, and the first values."""
    where = wrong.nonzero()
    count, total = len(where), wrong.numel()
    lines = [f"{count} of {total} elements differ" + (f", {_region(where, wrong)}" if count > 1 else "")]
    for position in where[:3].tolist():
        index = tuple(position)
        lines.append(f"  at {index or 'the scalar'}: expected {expected[index].item()!r}, got {got[index].item()!r}")
    return "\n".join(lines)


def _region(where: torch.Tensor, wrong: torch.Tensor) -> str:
    if where.shape[1] == 0:
        return "everywhere"
    if len(where) == wrong.numel():
        return "everywhere"
    low, high = where.min(0).values.tolist(), where.max(0).values.tolist()
    return "in " + " × ".join(f"{a}..{b} of {n}" for a, b, n in zip(low, high, wrong.shape, strict=True))
