"""Floats among arguments: a kernel may take them as float32, in which 1 - 0.999 is off by 5e-5 of itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.comparison.magnitudes import distance, typical
from opwright.checks.comparison.rounding import exactly, is_in_float32, to_double

__all__ = ["has_numbers", "matter_smoothly"]

# The largest change of a result, relative to it and to those around it, that the rounding of numbers may cause.
# A larger one is another choice: 0.3 * 10 is 3, and of a little less, 2 elements are taken.
_MOST = 2.0**-8


def has_numbers(arguments: Any) -> bool:
    """Whether float32 does not have some float among the arguments."""
    return any(type(leaf) is float and not is_in_float32(leaf) for leaf in tree.leaves(arguments))


def matter_smoothly(
    run: Callable[[Any], Sequence[torch.Tensor]], arguments: Any, exact: Sequence[torch.Tensor], eps: float
) -> bool:
    """Whether results change little if all these floats are a little larger, or smaller."""
    for factor in (1 + eps, 1 - eps):
        changed = tree.map_leaves(functools.partial(_times, factor), arguments)
        try:
            with exactly():
                results = run(to_double(changed))
        except Exception:  # a reference may refuse other numbers by any exception
            return False
        for a, b in zip(results, exact, strict=True):
            if a.shape != b.shape or not _is_close(a, b):
                return False
    return True


def _times(factor: float, leaf: Any) -> Any:
    return leaf * factor if type(leaf) is float and not is_in_float32(leaf) else leaf


def _is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not (b.is_floating_point() or b.is_complex()):
        return bool((a == b).all())
    off = distance(a, b).nan_to_num(0, 0, 0)
    size = torch.maximum(b.abs().double(), typical(b)).nan_to_num(0, 0, 0)
    return bool((off <= _MOST * size).all())
