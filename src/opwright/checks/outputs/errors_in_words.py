"""Wrong elements in words: the values, and by how much an error exceeds what is allowed."""

from __future__ import annotations

import math

import torch

from opwright.checks.comparison.difference import describe_difference
from opwright.checks.comparison.magnitudes import distance
from opwright.checks.comparison.tolerance import Computation

__all__ = ["describe_errors"]


def describe_errors(reference: Computation, i: int, got: torch.Tensor, wrong: torch.Tensor) -> str:
    """``describe_difference`` of a result and the reference's, with the error and the allowed error of each element
    that is shown: those of floats, where both are finite. (Nobody reads what is said in haste.)"""
    rounded = reference.rounded[i]
    first, *elements = describe_difference(got, rounded, wrong).splitlines()
    if reference.is_hasty or not (rounded.is_floating_point() or rounded.is_complex()):
        return "\n".join((first, *elements))
    error, allowed = distance(got, reference.exact[i]), reference.allowed(i)
    places = wrong.nonzero()[: len(elements)].tolist()
    sizes = [(float(error[tuple(at)]), float(allowed[tuple(at)])) for at in places]
    lines = [f"{text}{_sizes(*size)}" for text, size in zip(elements, sizes, strict=True)]
    return "\n".join((first, *lines))


def _sizes(error: float, allowed: float) -> str:
    return f" (off by {error:.2g}, allowed {allowed:.2g})" if math.isfinite(error) and error > allowed else ""
