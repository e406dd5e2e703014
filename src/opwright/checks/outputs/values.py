"""The check "values": outputs against the reference in float64, within a tolerance for rounding."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import torch

from opwright.checks.check import Check
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.comparison.difference import ErrorSizes
from opwright.checks.comparison.directed_rounding import rounding_direction
from opwright.checks.comparison.magnitudes import are_finite
from opwright.checks.comparison.statistics import ERROR_RATE
from opwright.checks.context import Context
from opwright.checks.each_case import check_each_case
from opwright.checks.exceptions import Raised
from opwright.checks.observation import Observation, to_cpu
from opwright.checks.outputs.errors_in_words import describe_errors
from opwright.checks.outputs.random_values import difference_of_distributions, not_repeatable, sampled_cases
from opwright.contract.dtypes import short
from opwright.contract.inputs.arranged import has_arranged_floats
from opwright.contract.inputs.case import BOUNDS, CONFIDENT, DYADIC, MASKED, SMALL, WIDE
from opwright.results import Finding, NotChecked, Status
from opwright.workers.wire import NotATensor

__all__ = ["CHECK", "NAME", "check"]

NAME = "values"
# Values of zero or at the end of a range, where a formula such as 0 / 0 may be undefined and another one be not.
_MAY_BE_UNDEFINED = (DYADIC, SMALL, BOUNDS)


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Check every output element of every case. The finding contains a histogram of the errors."""
    if context.op.contract.random:
        yield from _check_distributions(context)
        return
    if (why := _different_each_time(context)) is not None:
        yield why
        return
    sizes = ErrorSizes()
    for found in check_each_case(context, NAME, functools.partial(_find_error_or_dtype, sizes=sizes)):
        yield dataclasses.replace(found, error_histogram=sizes.histogram()) if isinstance(found, Finding) else found


def _find_error_or_dtype(context: Context, run: Observation, sizes: ErrorSizes | None = None) -> str | None:
    """``find_error``, or another dtype, if the check "metadata" does not look at that."""
    selected = context.request.selected
    wrong = find_error(context, run, sizes)
    return wrong if wrong is not None or not selected or "metadata" in selected else _other_dtype(context, run)


def _other_dtype(context: Context, run: Observation) -> str | None:
    """What an output has for a dtype, if the reference gives another one. (Where torch computes in float32 in place of
    a narrow dtype, that is not known.)"""
    if not isinstance(run.outputs, tuple) or run.reference.is_widened:
        return None
    names = context.op.contract.result_names(run.arguments, run.expected)
    for name, got, expected in zip(names, run.outputs, run.expected, strict=True):
        if got.dtype != expected.dtype:
            return f"{f'{name}: ' if name else ''}dtype {short(got.dtype)}, expected {short(expected.dtype)}"
    return None


def _check_distributions(context: Context) -> Iterator[Finding | NotChecked]:
    """Each case runs; a few are sampled, and the distributions of their results compared."""
    found = list(check_each_case(context, NAME, _find_error_or_dtype))
    yield from (f for f in found if isinstance(f, NotChecked) or f.status is Status.FAIL)
    if any(isinstance(f, Finding) and f.status is Status.FAIL for f in found):
        return
    sampled = sampled_cases(context)
    for case in sampled:
        run = context.observe(case)
        assert isinstance(run, Observation)  # typical_cases returns only cases that ran
        wrong = not_repeatable(context, run) or difference_of_distributions(context, run, NAME)
        if wrong is not None:
            yield context.failed(NAME, str(case), wrong)
            return
    if sampled:
        message = f"{len(sampled)} distributions, error rate {ERROR_RATE:g} each"
        coverage = next((f.coverage for f in found if isinstance(f, Finding)), None)
        yield Finding(NAME, Status.PASS, message=message, coverage=coverage)
    else:
        yield NotChecked(NAME, "no case could be sampled")


def _different_each_time(context: Context) -> Finding | None:
    """A finding if the reference gives different results for the same arguments, which nothing can equal."""
    for case in typical_cases(context, 1):
        run = context.observe(case)
        assert isinstance(run, Observation)  # typical_cases returns only cases that ran
        torch.manual_seed(torch.initial_seed() + 1)
        again = run.reference.run(to_cpu(run.before))
        for i, (a, b) in enumerate(zip(run.expected, again, strict=True)):
            if a.shape != b.shape or not _equal_up_to_rounding(a, b):
                return context.failed(
                    NAME,
                    str(case),
                    f"the reference gives different results for the same arguments (output {i}): declare it with "
                    "@ow.op(..., random=True), or draw with a generator that an argument seeds",
                )
    return None


def _equal_up_to_rounding(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    x, y = (t.to(torch.complex128 if a.is_complex() else torch.float64) for t in (a, b))
    largest = float(x.abs().nan_to_num(0, 0, 0).max()) if x.numel() else 0.0
    rounding = 64 * torch.finfo(a.dtype).eps
    return torch.allclose(x, y, rtol=rounding, atol=rounding * largest, equal_nan=True)


def find_error(
    context: Context, run: Observation, sizes: ErrorSizes | None = None, *, at_limits: bool = False
) -> str | None:
    """The first error in the values of one run, or None.

    Args:
        sizes: counts the errors of all elements.
        at_limits: compare what NaN and denormal numbers give, and where only the reference gives NaN for infinities.
    """
    if run.case.values == MASKED and not run.reference.defines_infinities:
        return None  # other cases have infinities of which nothing is said
    if isinstance(run.outputs, Raised):
        return f"the kernel raised {run.outputs}"
    if len(run.outputs) != len(run.expected):
        written = len(context.op.contract.signature.written(run.arguments))
        expected_count = len(run.expected) - written
        return f"the kernel returned {len(run.outputs) - written} outputs, expected {expected_count}"
    names = [f"{name}: " if name else "" for name in context.op.contract.result_names(run.arguments, run.expected)]
    for i, (got, expected) in enumerate(zip(run.outputs, run.expected, strict=True)):
        name = names[i]
        if not isinstance(got, torch.Tensor):
            returned = got.name if isinstance(got, NotATensor) else type(got).__name__
            return f"{name}the kernel returned {returned}, expected a tensor"
        if got.shape != expected.shape:
            return f"{name}shape {list(got.shape)}, expected {list(expected.shape)}"
        if context.op.contract.random or _is_free(context, i):
            continue  # its distribution, or its properties, are compared
        if run.case.values in ("nan", "tiny", WIDE) and not at_limits:
            continue  # the check "special values" compares them
        got = got.detach().cpu()
        wrong = run.reference.wrong(i, got, sizes)
        if run.case.values in ("inf", MASKED) and not at_limits:
            # inf - inf or 0 · inf may arise in one algorithm, not in another, unless the reference says what is meant.
            is_floating = expected.is_floating_point() or expected.is_complex()
            wrong = wrong & (are_finite(got) | (run.case.values == MASKED)) & ~expected.isnan() & is_floating
        if _may_be_undefined(context, run) and (expected.is_floating_point() or expected.is_complex()):
            wrong = wrong & are_finite(expected)
        if wrong.any():
            return name + describe_errors(run.reference, i, got, wrong)
        exact = run.reference.exact[i]
        direction = rounding_direction(got, exact) if run.case.is_plain else ""
        if direction and rounding_direction(expected, exact) != direction:
            return f"{name}all results are rounded {direction}, not to the nearest {short(got.dtype)}"
    return None


def _may_be_undefined(context: Context, run: Observation) -> bool:
    """Whether a kernel may give anything where the reference is not finite, as of 0 · log(0) in empty tails."""
    values = run.case.values
    return values in _MAY_BE_UNDEFINED or (values == CONFIDENT and has_arranged_floats(context.op.contract))


def _is_free(context: Context, i: int) -> bool:
    """Whether several values of an output are right."""
    returns = context.op.contract.signature.stated_returns(i + 1)
    return i < len(returns) and returns[i].by_property


CHECK = Check(
    NAME,
    "Does every element match the reference in float64, and every random result its distribution?",
    cases="all; distributions: one in each dtype, one strided, each dim long, a large one",
    run=check,
    group="values",
)
