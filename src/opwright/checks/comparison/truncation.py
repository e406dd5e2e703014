"""Whether a kernel cuts results off, in place of rounding them to the nearest number of a narrow dtype.

Each such result is within the tolerance, as it is off by less than one unit in the last place. But all are off towards
zero: sums of them drift, and small updates are lost. A right kernel's errors have both signs.
"""

from __future__ import annotations

import torch

__all__ = ["are_cut_off"]

_NARROW = (torch.float16, torch.bfloat16)
# Of so many results that lie between two numbers, about half are rounded up.
_FEW = 256
# In units of the last place.
_NOTHING, _NEARLY_ONE = 0.02, 0.9


def are_cut_off(got: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether all results in a narrow dtype are between zero and the exact ones, some nearly one unit away."""
    if got.dtype not in _NARROW or got.numel() < _FEW:
        return False
    exact, found = exact.double().flatten(), got.double().flatten()
    limits = torch.finfo(got.dtype)
    ordinary = found.isfinite() & exact.isfinite() & (exact.abs() > 4 * limits.tiny)
    exact, found = exact[ordinary], found[ordinary]
    unit = torch.ldexp(torch.full_like(exact, limits.eps), torch.frexp(exact).exponent - 1)
    outwards = exact.sign() * (found - exact) / unit
    between = outwards.abs() > _NOTHING
    if int(between.sum()) < _FEW or bool((outwards > _NOTHING).any()):
        return False
    return -1 - _NOTHING <= float(outwards.min()) <= -_NEARLY_ONE
