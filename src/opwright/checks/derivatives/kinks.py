"""Gradients where a function has kinks: at zeros, at equal elements, in rows of zeros.

There, which gradient is right is a convention: another one than the reference's is a doubt. One that is not finite,
where the reference's is, is wrong.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch

from opwright import tree
from opwright.checks.comparison.difference import describe_difference
from opwright.checks.comparison.magnitudes import are_finite
from opwright.checks.comparison.tolerance import Computation
from opwright.checks.context import Context
from opwright.checks.derivatives.derivative import Doubt
from opwright.checks.observation import Observation, SkippedCase, copy_of
from opwright.contract import derive
from opwright.contract.inputs.arguments import env_of
from opwright.contract.inputs.case import Case
from opwright.contract.values import draw_range
from opwright.errors import CheckError

__all__ = ["ROUNDED", "difference", "run_with", "values_with_kinks"]

# What values are replaced by: rounded ones with a row of zeros, or zeros in one argument.
ROUNDED = "rounded values"
_ZEROS = "zeros for "
_MOST_ARGUMENTS = 4


def values_with_kinks(context: Context, case: Case) -> Iterator[str]:
    """The kinds of values with kinks that the arguments of a case may have."""
    if case.sample is not None:
        return  # only the author knows which values are meant
    names = [a.name for a, bounds in _bounds(context, case) if bounds is not None]
    yield from [ROUNDED] * bool(names)
    yield from (f"{_ZEROS}{name!r}" for name in names[:_MOST_ARGUMENTS])


def run_with(context: Context, case: Case, values: str) -> Observation | SkippedCase:
    """A case with other values, where the reference gives finite results."""
    prepared = context.prepare(case)
    if isinstance(prepared, SkippedCase):
        return prepared
    changed = [
        _replaced(value, bounds, values) if values in (ROUNDED, f"{_ZEROS}{argument.name!r}") else value
        for (argument, bounds), value in zip(_bounds(context, case), prepared.arguments, strict=True)
    ]
    try:
        if context.calls.chosen(changed) != context.kernel:
            return SkippedCase("the kernel is not applicable (dtypes, when)")
    except CheckError as error:
        return SkippedCase(error.message)
    at_kinks = context.prepare_with(case, changed)
    if isinstance(at_kinks, SkippedCase):
        return at_kinks
    if not all(bool(are_finite(t).all()) for t in at_kinks.expected if derive.differentiable(t)):
        return SkippedCase("the reference gives no finite results")
    return Observation(case, at_kinks.arguments, at_kinks.compute, copy_of(at_kinks.arguments), at_kinks.expected)


def difference(name: str, reference: Computation, i: int, actual: torch.Tensor) -> str | Doubt | None:
    """How a gradient differs from the reference's, where that is finite."""
    exact, rounded = reference.exact[i], reference.rounded[i]
    is_known = exact.isfinite() & rounded.isfinite()
    undefined = is_known & ~actual.isfinite()
    if undefined.any():
        return f"the gradient of {name!r} is not finite: {describe_difference(actual, rounded, undefined)}"
    other = reference.wrong(i, actual) & is_known
    if not other.any():
        return None
    return Doubt(
        f"the gradient of {name!r} is not the reference's where that is a convention: "
        f"{describe_difference(actual, rounded, other)}",
        "give the gradient that torch gives at zeros and equal elements, unless another one is meant",
    )


def _bounds(context: Context, case: Case) -> Iterator[tuple[Any, tuple[float, float] | None]]:
    """Each argument, and between which numbers its elements may be; None where they have to stay as they are."""
    env = env_of(context.op.contract, case)
    for argument in context.op.contract.signature.arguments:
        stated = argument.values
        if not argument.is_tensor or argument.goes_together or (stated is not None and stated.one_of):
            yield argument, None
            continue
        low, high = (-math.inf, math.inf) if stated is None else draw_range(stated.at(env), -math.inf, math.inf)
        yield argument, (low, high) if low <= 0 <= high else None


def _replaced(value: Any, bounds: tuple[float, float] | None, values: str) -> Any:
    if bounds is None:
        return value
    rounded = functools.partial(_rounded, low=max(bounds[0], -1.0), high=min(bounds[1], 1.0))
    change = rounded if values == ROUNDED else torch.zeros_like
    return tree.map_tensors(lambda t: change(t) if derive.differentiable(t) else t, value)


def _rounded(t: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Halves, many of which are equal or zero, and zeros in the first row."""
    parts = torch.view_as_real(t) if t.is_complex() else t
    parts = ((2 * parts).round() / 2).clamp(low, high)
    found = torch.view_as_complex(parts) if t.is_complex() else parts
    if t.dim() > 1 and t.numel():
        found[(0,) * (t.dim() - 1)] = 0
    return found
