"""The check "opcheck": torch's own check of a registration (``torch.library.opcheck``): schema, fake, autograd, AOT.

It has no reference, and misses most numerical errors; the other checks find those. The check also compares the fakes of
other operators that the kernel calls with their results.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.check import Check, Process
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.context import Context
from opwright.checks.derivatives.derivative import Derivative, derivative_of, gradients_of_sum
from opwright.checks.exceptions import in_words
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Observation, to_cpu
from opwright.checks.registration.adopted import has_gradient, why_not_an_operator, why_not_traced
from opwright.checks.registration.called_operators import fakes_of_called
from opwright.checks.registration.reference_faults import reference_fault, with_remedy
from opwright.contract import derive
from opwright.contract.signature import Argument
from opwright.results import Finding, NotChecked, Origin, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "opcheck"
# It compares two runs, and takes NaN for different from NaN.
_AOT = "test_aot_dispatch_dynamic"
_TESTS = ("test_schema", "test_autograd_registration", "test_faketensor", _AOT)
_WITHOUT_FAKE = ("test_schema", "test_autograd_registration")
_INSTEAD = 'The check "torch.compile" compares them'
# Other values for floats: from 0 to 1, where logarithms and roots are defined, and from 1.
_OTHER_VALUES: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (torch.sigmoid, lambda t: 1 + t.abs())


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Check one contiguous case (with gradients, if any) and one strided."""
    if why := why_not_an_operator(context):
        yield NotChecked(NAME, why)
        return
    chosen = typical_cases(context, 1) + typical_cases(context, 1, layouts=("sliced", "transposed"))
    for case in chosen:
        context.progress(NAME, str(case))
        run = context.observe(case)
        assert isinstance(run, Observation)  # typical_cases returns only cases that ran
        derivative = _derivative(context, run)
        arguments, largest = _without_nan(context, run, derivative)
        tests = _tests_for(context, run.arguments)
        if why := why_not_traced(context, run):
            yield NotChecked(NAME, why)
            tests = [test for test in tests if test in _WITHOUT_FAKE]
        if arguments is None and _AOT in tests:
            yield NotChecked(NAME, f"{_AOT}, for which results with NaN are different ({case})")
            tests.remove(_AOT)
        chosen_arguments = arguments or same_layout(run.arguments)
        if _AOT in tests and any(t.dtype.is_floating_point and t.dtype.itemsize == 1 for t in run.expected):
            yield NotChecked(NAME, f"{_AOT}, which adds results: torch does not add floats of a byte. {_INSTEAD}")
            tests.remove(_AOT)
        wrong: str | Exception | None = None
        if _AOT in tests and _cannot_be_added(context, run):
            tests.remove(_AOT)
            wrong = _run(context, chosen_arguments, [_AOT], largest)
        wrong = wrong or _run(context, derivative.track(chosen_arguments), tests, largest)
        if isinstance(wrong, Exception):
            fault = reference_fault(context, run, derivative.exists, wrong, dynamic=True)
            if fault:
                yield NotChecked(NAME, f"{fault} where torch traces it with dynamic shapes ({case})")
                return
            wrong = in_words(wrong).replace(_NOTHING_THERE, "")[:1500]
        for found in fakes_of_called(context, run) if case == chosen[0] else ():
            if isinstance(found, NotChecked):
                yield found
            else:
                wrong = wrong or found
        if wrong is not None:
            yield with_remedy(context, context.failed(NAME, str(case), wrong))
            return
    yield (
        Finding(NAME, Status.PASS, message=f"{len(chosen)} cases")
        if chosen
        else NotChecked(NAME, "no case could be run")
    )


def _derivative(context: Context, run: Observation) -> Derivative:
    """By which tensors torch's tests differentiate: in float32 and float64 only. A leaf that requires a gradient cannot
    be written."""
    found, tensors = derivative_of(context, run), tree.tensors(run.arguments)
    if context.op.contract.signature.mutated or context.op.parts["autograd"].origin is Origin.MISSING:
        return Derivative(tuple(False for _ in tensors))
    wide = (t.dtype in (torch.float32, torch.float64) for t in tensors)
    tracked = tuple(e and w for e, w in zip(found.exists, wide, strict=True))
    return Derivative(tracked if has_gradient(context, run, tracked) else tuple(False for _ in tensors))


def _without_nan(context: Context, run: Observation, derivative: Derivative) -> tuple[list[Any] | None, float]:
    """Arguments whose results and gradients have no NaN, and the largest of these: those of the case, or with other
    values where none are stated; None if there are none."""
    signature = context.op.contract.signature
    for other in (None, *_OTHER_VALUES):
        pairs = zip(signature.arguments, same_layout(run.arguments), strict=True)
        arguments = [value if other is None else _replaced(a, value, other) for a, value in pairs]
        if (largest := _largest(context, arguments, derivative)) is not None:
            return arguments, largest
    return None, 0.0


def _replaced(argument: Argument, value: Any, other: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def replace(tensor: torch.Tensor) -> torch.Tensor:
        can_be = derive.differentiable(tensor) and 0 not in tensor.stride()  # an expanded tensor cannot be written
        return tensor.copy_(other(tensor)) if can_be else tensor

    return value if argument.values is not None else tree.map_tensors(replace, value)


def _largest(context: Context, arguments: Sequence[Any], derivative: Derivative) -> float | None:
    """The largest magnitude of results and gradients; None if there is a NaN."""
    contract, on_cpu = context.op.contract, to_cpu(arguments)
    try:
        results = contract.reference(on_cpu)
        if any(derivative.exists):
            results = (*results, *gradients_of_sum(contract, on_cpu, results, derivative.exists))
    except Exception:  # the reference may refuse other values by any exception
        return None
    floating = [t for t in results if t.numel() and (t.dtype.is_floating_point or t.dtype.is_complex)]
    sizes = [float(t.abs().double().nan_to_num(torch.nan, 0.0).max()) for t in floating]
    return None if any(map(math.isnan, sizes)) else max(sizes, default=0.0)


def _tests_for(context: Context, arguments: Sequence[Any]) -> list[str]:
    """Those of torch's tests that can be run. One compares the results of two runs, which differ if they are random;
    one compares arguments by arithmetic, which torch lacks on floats of a byte."""
    left_out = set()
    if context.op.contract.random is True:
        left_out.add(_AOT)
    if any(t.dtype.is_floating_point and t.dtype.itemsize == 1 for t in tree.tensors(list(arguments))):
        left_out.add("test_schema")
    return [test for test in _TESTS if test not in left_out]


def _cannot_be_added(context: Context, run: Observation) -> bool:
    """Whether torch's test of gradients cannot be run: it adds each result in place to the first one, and raises an
    error where that is an integer and another one is not. The check "torch.compile" compares these gradients."""
    dtypes = [t.dtype for t in run.expected[: context.op.contract.signature.visible]]
    floating = [d.is_floating_point or d.is_complex for d in dtypes]
    return bool(floating) and not floating[0] and any(floating)


# The share of the largest result by which a compiled graph's results and gradients may differ: it may add in another
# order. That they are right is what other checks say.
_ROUNDING = 1e-4
# What torch's message ends with; a finding holds the cause itself, and nothing stands above it.
_NOTHING_THERE = " (scroll up for stack trace)"


def _run(context: Context, arguments: Sequence[Any], tests: Sequence[str], largest: float) -> Exception | None:
    signature = context.op.contract.signature
    split = len(signature.positional)
    keywords = {a.name: v for a, v in zip(signature.keyword_only, arguments[split:], strict=True)}
    try:
        with warnings.catch_warnings(), context.op.only(context.kernel):
            warnings.simplefilter("ignore")
            torch.library.opcheck(
                context.op.overload,
                tuple(arguments[:split]),
                keywords,
                test_utils=tests,
                rtol=_ROUNDING,
                atol=max(1e-5, _ROUNDING * largest),
            )
    except Exception as error:  # opcheck raises OpCheckError, and whatever the operator raises
        return error
    return None


CHECK = Check(
    NAME,
    "Does `torch.library.opcheck` pass, and are the fakes of other operators that the kernel calls right?",
    cases="two",
    run=check,
    process=Process.KERNEL,
    group="derivatives",
)
