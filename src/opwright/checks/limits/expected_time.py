"""How long a simulator would take for a case, from the cases that it has run."""

from __future__ import annotations

import math
from collections.abc import Mapping

from opwright.contract.inputs.case import Case, Size

__all__ = ["expected_seconds"]

# So many calls are known before one is left out: the first ones also compile the kernel.
_CALLS = 8


def expected_seconds(case: Case, seconds: dict[Case, float], most: float) -> float:
    """The seconds that a call takes if its time grows no faster than each size; 0 if that is not more than ``most``,
    or too little is known.

    Each earlier case gives such an estimate, and the least counts: smaller sizes are taken to save nothing.

    Args:
        case: the one that has not run.
        seconds: those of calls, by case.
    """
    if len(seconds) < _CALLS:
        return 0.0
    sizes, least = dict(case.sizes), math.inf
    for known in reversed(seconds):  # the latest is mostly as large
        least = min(least, seconds[known] * _growth(dict(known.sizes), sizes))
        if least <= most:
            return 0.0
    return least


def _growth(before: Mapping[str, Size], now: Mapping[str, Size]) -> float:
    """The product of the factors by which sizes are larger; infinity where an earlier one has no elements."""
    factors = [(_length(before.get(name, 1)), _length(size)) for name, size in now.items()]
    if any(old == 0 for old, _ in factors):
        return math.inf
    return math.prod(max(1.0, new / old) for old, new in factors)


def _length(size: Size) -> int:
    return math.prod(size) if isinstance(size, tuple) else int(size)
