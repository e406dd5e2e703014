"""Whether a kernel rounds all results of a narrow dtype in one direction, in place of to the nearest number.

Each such result is within the tolerance, as it is off by less than one unit in the last place. But all errors have one
direction: sums of them drift, and small updates are lost. A right kernel's errors have both signs.
"""

from __future__ import annotations

import torch

__all__ = ["rounding_direction"]

_NARROW = (
    torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
)  # fmt: skip
# Of so many results that lie between two numbers, about half are rounded up.
_FEW = 256
# In units of the last place.
_NOTHING, _NEARLY_ONE = 0.02, 0.9


def rounding_direction(got: torch.Tensor, exact: torch.Tensor) -> str:
    """The direction in which all results in a narrow dtype are rounded, some by nearly one unit in the last place.

    Returns:
        ``towards zero``, ``away from zero``, ``down`` or ``up``; empty if errors have both signs, or too few results
        lie between two numbers of the dtype.
    """
    if got.dtype not in _NARROW or got.numel() < _FEW:
        return ""
    exact, found = exact.double().flatten(), got.double().flatten()
    limits = torch.finfo(got.dtype)
    ordinary = found.isfinite() & (exact.abs() > 4 * limits.tiny) & (exact.abs() < limits.max)
    exact, found = exact[ordinary], found[ordinary]
    unit = torch.ldexp(torch.full_like(exact, limits.eps), torch.frexp(exact).exponent - 1)
    upwards = (found - exact) / unit
    if int((upwards.abs() > _NOTHING).sum()) < _FEW:
        return ""
    outwards = exact.sign() * upwards
    directions = {"towards zero": -outwards, "away from zero": outwards, "down": -upwards, "up": upwards}
    return next((name for name, errors in directions.items() if _all_are_positive(errors)), "")


def _all_are_positive(errors: torch.Tensor) -> bool:
    """Whether none is negative, and some are nearly one unit, but none is more."""
    return bool((errors >= -_NOTHING).all()) and _NEARLY_ONE <= float(errors.max()) <= 1 + _NOTHING
