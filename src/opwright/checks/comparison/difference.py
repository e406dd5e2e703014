"""How far results are from what is expected: in words, as a histogram, and bit by bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from opwright.contract.dtypes import element_bytes, equal_bytes
from opwright.results import ErrorHistogram

__all__ = ["ErrorSizes", "describe_difference", "different_bits"]

# Of a float64: how many bits are below the exponent, and the exponent of 2^-9. Shares up to 2^-8 are in the first bin.
_MANTISSA_BITS, _FIRST_BIN = 52, 1023 - 9


class ErrorSizes:
    """Counts errors by their share of the allowed error: in doubling bins up to 1, and above 1."""

    _EDGES = (0.0, *(2.0**-p for p in range(8, -1, -1)), 2.0)

    def __init__(self) -> None:
        self._counts = torch.zeros(len(self._EDGES) - 1, dtype=torch.int64)

    def count(self, error: torch.Tensor, tolerance: torch.Tensor, wrong: torch.Tensor) -> None:
        """Count absolute errors with their tolerances, element by element. Exactly the wrong elements are above 1
        (an expected NaN is not an error)."""
        share = error.div(tolerance.clamp_min(torch.finfo(torch.float64).tiny)).nan_to_num_(0).clamp_max_(1)
        share.masked_fill_(wrong, torch.inf)
        # A number's exponent is that of its bin, and that of a power of two the next higher, in whose bin it is not.
        bins = share.view(torch.int64).sub_(1).bitwise_right_shift_(_MANTISSA_BITS).sub_(_FIRST_BIN)
        self._counts += torch.bincount(bins.clamp_(0, len(self._counts) - 1).flatten(), minlength=len(self._counts))

    def histogram(self) -> ErrorHistogram | None:
        """The histogram; None if nothing was counted, as for integers."""
        if not int(self._counts.sum()):
            return None
        return ErrorHistogram(self._EDGES, tuple(self._counts.tolist()), "share of the allowed error")


def describe_difference(got: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor) -> str:
    """A text for messages: where two tensors differ, how often, and the first values."""
    where = wrong.nonzero()
    count, total = len(where), wrong.numel()
    lines = [f"{count} of {total} elements differ" + (f", {_region(where, wrong)}" if count > 1 else "")]
    for position in where[:3].tolist():
        index = tuple(position)
        lines.append(f"  at {index or 'the scalar'}: expected {expected[index].item()!r}, got {got[index].item()!r}")
    return "\n".join(lines)


def different_bits(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> str | None:
    """Where results ``b`` differ from ``a`` in any bit, -0.0 from 0.0 and NaN from NaN included; None if nowhere."""
    for i, pair in enumerate(zip(a, b, strict=True)):
        x, y = (t.detach().cpu() for t in pair)
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"output {i} has another shape or dtype"
        bits = [element_bytes(t) for t in (x, y)]
        if not equal_bytes(*bits):
            differ = (bits[0] != bits[1]).view(-1, x.element_size()).any(1).view(x.shape)
            return f"output {i}: {describe_difference(y, x, differ)}"
    return None


def _region(where: torch.Tensor, wrong: torch.Tensor) -> str:
    if where.shape[1] == 0:
        return "everywhere"
    if len(where) == wrong.numel():
        return "everywhere"
    low, high = where.min(0).values.tolist(), where.max(0).values.tolist()
    return "in " + " × ".join(f"{a}..{b} of {n}" for a, b, n in zip(low, high, wrong.shape, strict=True))
