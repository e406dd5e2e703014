"""The check "gradients": the gradients of every input, against the reference's VJP in float64."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.check import Check
from opwright.checks.comparison.magnitudes import distance
from opwright.checks.comparison.tolerance import Computation
from opwright.checks.context import KERNEL, Context
from opwright.checks.derivatives import stored_results
from opwright.checks.derivatives.derivative import Doubt, derivative_of, names_of_tensors
from opwright.checks.derivatives.kinks import difference, run_with
from opwright.checks.derivatives.passes import Pass, passes_of, visible_outputs
from opwright.checks.each_case import MOST_FAILURES, kind_of
from opwright.checks.kernel_calls import Gradients, Meanwhile, without_gradient
from opwright.checks.limits.time_limit import time_of
from opwright.checks.observation import Observation, Prepared, SkippedCase, copy_of, to_cpu
from opwright.checks.outputs import inputs_unchanged
from opwright.checks.outputs.errors_in_words import describe_errors
from opwright.checks.settings.state import SET_UP_ONCE
from opwright.contract import derive
from opwright.contract.contract import Contract
from opwright.contract.dtypes import element_bytes, short
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.layouts import arrange
from opwright.errors import CompileTimeoutError
from opwright.results import Coverage, Finding, NotChecked, Origin, Status

__all__ = [
    "NAME",
    "backward_of",
    "check",
    "compare",
    "compare_with_reference",
    "expected_gradients",
    "incoming_gradient",
    "incoming_gradients",
    "of_this_operator",
    "wrong_derived_gradient",
]

NAME = "gradients"
# So much of a step may the reference's gradient take; it is then computed again for errors of rounding.
_SHARE_OF_A_STEP = 1 / 3
# Of a tensor's name, the gradients of the reference, which of these it is, and the kernel's: what is wrong with that.
OfEach = Callable[[str, Computation, int, torch.Tensor], "str | Doubt | None"]


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """A few cases in each floating dtype, with plain, strided and expanded incoming gradients."""
    if context.op.contract.functional is None:
        yield NotChecked(NAME, "it writes a list of tensors or an optional one, and has no derivative")
        return
    if context.op.parts["autograd"].origin is Origin.MISSING:
        yield NotChecked(NAME, context.op.parts["autograd"].how)
        return
    if context.op.contract.random:
        yield NotChecked(
            NAME, "results are random, so the gradient is not the reference's; state it with op.register_property"
        )
        return
    if marked := [a.name for a in context.op.contract.signature.arguments if a.no_gradient]:
        yield NotChecked(NAME, f"none for {', '.join(map(repr, marked))}, as ow.no_gradient states")
    yield from _check_passes(context)


def _check_passes(context: Context) -> Iterator[Finding | NotChecked]:
    passed, known, doubts, unchecked = 0, set[str](), set[str](), set[NotChecked]()
    ran: dict[Case, bool] = {}
    for one in passes_of(context):
        case = one.case
        context.progress(NAME, str(case))
        wrong = _check_pass(context, one)
        if isinstance(wrong, NotChecked):
            if wrong not in unchecked:
                yield wrong
            if context.op.adopted and wrong.reason.startswith(without_gradient(context.op)):
                return
            unchecked.add(wrong)
            ran.setdefault(case, False)
            continue
        ran[case] = True
        if wrong is None or isinstance(wrong, Doubt):
            passed += 1
        if isinstance(wrong, Doubt) and kind_of(wrong.message) not in doubts:
            doubts.add(kind_of(wrong.message))
            yield Finding(NAME, Status.WARNING, str(case), f"{one}: {wrong.message}", remedy=wrong.remedy)
        if isinstance(wrong, str) and kind_of(wrong) not in known:
            known.add(kind_of(wrong))
            yield context.failed(NAME, str(case), f"{one}: {wrong}")
            if len(known) == MOST_FAILURES:
                return
    if passed and not known:
        coverage = Coverage(sum(ran.values()), len(ran))
        yield Finding(NAME, Status.PASS, message=f"{passed} backward passes", coverage=coverage)
    elif not ran:
        yield NotChecked(NAME, "no case with a differentiable input ran")


def _check_pass(context: Context, one: Pass) -> str | Doubt | NotChecked | None:
    run = run_with(context, one.case, one.values) if one.values else context.observe(one.case)
    if isinstance(run, SkippedCase):
        return None
    number = itertools.count()
    every = derive.differentiable_arguments(context.op.contract, run.arguments)
    tracked = [e and (one.inputs is None or next(number) in one.inputs) for e in every]
    wrong = _run_pass(context, run, one, tracked)
    if wrong is None:
        return None
    derivative = derivative_of(context, run)
    without = [e and t for e, t in zip(derivative.exists, tracked, strict=True)]
    if without == tracked:
        return wrong
    return _run_pass(context, run, one, without) if any(without) else NotChecked(NAME, derivative.why_not)


def _run_pass(
    context: Context, run: Observation, one: Pass, tracked: Sequence[bool]
) -> str | Doubt | NotChecked | None:
    incoming = incoming_gradients(context, run, one.layout)
    if isinstance(incoming, NotChecked):
        return incoming
    if one.output is not None:
        incoming = [g if i == one.output else None for i, g in enumerate(incoming)]
    meanwhile = _meanwhile(context, run, incoming) if one.is_kept else None
    try:
        found = context.calls.gradients(run.arguments, tracked, incoming, meanwhile)
    except (MemoryError, torch.OutOfMemoryError):
        return NotChecked(NAME, "there is not enough memory for copies of the arguments")
    except CompileTimeoutError as error:
        return NotChecked(NAME, f"{error.message}, as for {one.case}")
    if one.values and isinstance(found.of_inputs, str) and not found.is_undefined:
        return None  # the kernel may refuse such values
    of_each = difference if one.values else of_this_operator(context)
    wrong = compare(context, run, tracked, incoming, found, of_each)
    if wrong is None and meanwhile is not None:
        wrong = _of_second_backward(context, run, tracked, meanwhile.incoming, found)
    return _left_changed(context, found) if wrong is None else wrong


def of_this_operator(context: Context) -> OfEach:
    """How a gradient of the operator is compared: a derived one is the reference's, whatever kernel ran before."""
    is_custom = context.op.parts["autograd"].origin is Origin.CUSTOM
    return wrong_gradient if is_custom else wrong_derived_gradient


def _left_changed(context: Context, found: Gradients) -> Doubt | None:
    """A setting of the process that a custom backward leaves changed."""
    if context.op.parts["autograd"].origin is not Origin.CUSTOM:
        return None
    for name, how in found.changed.items():
        if name not in SET_UP_ONCE:
            return Doubt(
                f"the backward changes {name}{f': {how}' if how else ''}",
                "leave it alone, or set it back, also after an exception",
            )
    return None


def _meanwhile(context: Context, run: Observation, incoming: Sequence[torch.Tensor | None]) -> Meanwhile:
    """A forward of other values, and other incoming gradients: what a kernel keeps in memory of its own is theirs."""
    other = context.prepare(run.case, draw=1)
    arguments = other.arguments if isinstance(other, Prepared) else run.arguments
    return Meanwhile(list(arguments), [None if g is None else (0.5 - g).contiguous() for g in incoming])


def _of_second_backward(
    context: Context, run: Observation, tracked: Sequence[bool], incoming: Sequence[Any], found: Gradients
) -> str | Doubt | NotChecked | None:
    if isinstance(found.again, str):
        return Doubt(
            f"a second backward of the same graph is refused: {found.again}",
            "keep what the backward needs with ctx.save_for_backward, which torch frees itself",
        )
    wrong = compare_with_reference(context, run, tracked, incoming, found.again, of_this_operator(context))
    return f"in the second backward, {wrong}" if isinstance(wrong, str) else wrong


def incoming_gradients(context: Context, run: Observation, layout: str) -> list[torch.Tensor | None] | NotChecked:
    """A gradient for each output that can be differentiated."""
    visible = visible_outputs(context, run)
    if not any(map(derive.differentiable, visible)):
        return NotChecked(NAME, "no output has a floating dtype")
    return [incoming_gradient(o, layout, context.arguments_on) if derive.differentiable(o) else None for o in visible]


def backward_of(context: Context, run: Observation) -> Callable[[], Gradients] | None:
    """A forward and backward of a run, for checks that repeat it; None if it has no gradient, or a wrong one, which the
    check "gradients" reports."""
    incoming = incoming_gradients(context, run, "contiguous")
    if isinstance(incoming, NotChecked):
        return None
    tracked = derive.differentiable_arguments(context.op.contract, run.arguments)
    forward_and_backward = functools.partial(context.calls.gradients, run.arguments, tracked, incoming)
    return None if isinstance(forward_and_backward().of_inputs, str) else forward_and_backward


def wrong_gradient(name: str, reference: Computation, i: int, actual: torch.Tensor) -> str | None:
    """How a gradient differs from the reference's."""
    wrong = reference.wrong(i, actual)
    if not wrong.any():
        return None
    return f"the gradient of {name!r} is wrong: {describe_errors(reference, i, actual, wrong)}"


# What a sum of a gradient's terms in a half dtype may be off by, in units of its eps and of the largest element.
_OF_HALF_SUMS = 4.0


def wrong_derived_gradient(name: str, reference: Computation, i: int, actual: torch.Tensor) -> str | Doubt | None:
    """``wrong_gradient`` of a derived gradient: the reference's own, on the device of the kernel. One that was summed
    in a half dtype, as torch's of ``cumsum`` is on some devices, is the reference's doing."""
    wrong = wrong_gradient(name, reference, i, actual)
    exact = reference.exact[i]
    if wrong is None or actual.dtype not in (torch.float16, torch.bfloat16) or not actual.isfinite().all():
        return wrong
    largest = float(exact.abs().nan_to_num(0, 0, 0).max())
    steps = _OF_HALF_SUMS + math.sqrt(reference.terms(i))
    allowed = reference.allowed(i) + _OF_HALF_SUMS * torch.finfo(actual.dtype).eps * steps * largest
    if not bool((distance(actual, exact) <= allowed).all()):
        return wrong
    return Doubt(
        f"the reference's own gradient loses digits in {short(actual.dtype)}: {wrong}",
        "compute it in float32 in the reference, x.float(), or register a gradient with op.register_autograd",
    )


def compare(
    context: Context,
    run: Observation,
    tracked: Sequence[bool],
    incoming: Sequence[Any],
    found: Gradients,
    of_each: OfEach = wrong_gradient,
) -> str | Doubt | NotChecked | None:
    """What is wrong with the gradients of tracked tensors, or with what the backward wrote."""
    if isinstance(found.of_inputs, str):
        return NotChecked(NAME, found.of_inputs) if found.is_undefined else found.of_inputs
    inputs, grads = found.passed
    if (written := _written(context, run, inputs, grads, incoming)) is not None:
        return written
    return compare_with_reference(context, run, tracked, incoming, found.of_inputs, of_each)


def _written(
    context: Context, run: Observation, inputs: Sequence[Any], grads: Sequence[Any], incoming: Sequence[Any]
) -> str | None:
    """What a forward and a backward have written, and which of them has."""
    if not all(itertools.starmap(_are_equal, zip(_tensors(grads), _tensors(incoming), strict=True))):
        return "the backward wrote the incoming gradient"
    changed = [not _are_equal(a, b) for a, b in zip(_tensors(inputs), _tensors(run.before), strict=True)]
    if not any(changed):
        return None
    forward = run if run.call is not None else context.observe(run.case)  # alone, which may be with other values
    if isinstance(forward, Observation) and (how := inputs_unchanged.find_error(context, forward)) is not None:
        return f"the forward wrote an input, not the backward: {how}"
    return f"the backward wrote argument {names_of_tensors(context, run)[changed.index(True)]!r}"


def _are_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(element_bytes(a).cpu(), element_bytes(b).cpu())


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    return tree.tensors(list(values))


def _contract(context: Context) -> Contract:
    contract = context.op.contract.functional
    assert contract is not None  # check() has returned
    return contract


def incoming_gradient(output: torch.Tensor, layout: str, device: str) -> torch.Tensor:
    """A gradient for an output, the same each time; ``expanded``: one number for all elements."""
    generator = torch.Generator().manual_seed(output.numel())
    values = torch.randn(output.shape, dtype=torch.float64, generator=generator)
    if layout == "expanded":  # as from .sum().backward(): one number with stride 0
        return values.flatten()[:1].sum().to(device, output.dtype).expand(output.shape)
    return arrange(values.to(output.dtype), layout, device)


def compare_with_reference(
    context: Context,
    run: Observation,
    tracked: Sequence[bool],
    incoming: Sequence[Any],
    got: Sequence[Any],
    of_each: OfEach = wrong_gradient,
) -> str | Doubt | NotChecked | None:
    """What is wrong with the gradients of tracked tensors."""
    if run.case in context.records.slow_gradients:
        return NotChecked(NAME, context.records.slow_gradients[run.case])
    contract = _contract(context)
    reference = expected_gradients(context, run, tracked, incoming)
    timeout = context.request.timeout
    stop = _SHARE_OF_A_STEP * timeout
    try:
        took = time_of(lambda: (reference.rounded, reference.exact), stop, stop / 2)
        if took == math.inf:  # as where torch loops over a long dim
            context.reports.runs(KERNEL, "")  # the reference may have been stopped as it was about to say so
            why = f"the reference's gradient takes more than {stop:.0f} s, too long with --timeout {timeout:g}"
            context.records.slow_gradients[run.case] = why
            return NotChecked(NAME, why)
    except Exception as error:  # a custom gradient, where torch has none of the reference
        return NotChecked(NAME, f"the reference has no derivative to compare with: {type(error).__name__}: {error}")
    named = [
        (a.name, t)
        for a, value in zip(contract.signature.arguments, run.arguments, strict=True)
        for t in tree.tensors([value])
    ]
    each = [pair for pair, is_tracked in zip(named, tracked, strict=True) if is_tracked]
    for i, ((name, tensor), grad) in enumerate(zip(each, got, strict=True)):
        expected = reference.rounded[i]
        actual = torch.zeros_like(expected) if grad is None else grad.detach().cpu()
        if actual.shape != tensor.shape:
            return f"the gradient of {name!r} has shape {list(actual.shape)}, expected {list(tensor.shape)}"
        wrong = of_each(name, reference, i, actual)
        if wrong is not None and stored_results.explain(context, run, tracked, incoming, reference, i, actual):
            continue
        if wrong is not None:
            return wrong
    return None


def expected_gradients(
    context: Context, run: Observation, tracked: Sequence[bool], incoming: Sequence[Any]
) -> Computation:
    """The reference's VJP, with the number of terms in each gradient: those of an output, for each output element
    that an element of the input contributes to."""
    contract = _contract(context)
    by = [t for t, is_tracked in zip(tree.tensors(list(run.arguments)), tracked, strict=True) if is_tracked]
    visible = visible_outputs(context, run)
    results = sum(o.numel() for o in visible)

    def terms(i: int) -> int:
        return 2 * run.reference.terms(0) + math.ceil(results / max(1, by[i].numel()))

    def vjp(values: Sequence[Any]) -> list[torch.Tensor]:
        arguments, grads = values
        return derive.vjp(contract, arguments, grads, tracked)

    grads = [*to_cpu(copy_of(list(incoming))), *[None] * (len(run.expected) - len(visible))]
    values = (to_cpu(copy_of(run.before)), grads)
    known, tf32 = context.reference_results, context.op.contract.tf32
    if known is None:
        return Computation(context.as_reference(vjp), values, terms, in_tf32=tf32)
    given, of_form = known.of((NAME, run.case, tuple(tracked)), values), known.of_form((NAME, tuple(tracked)), values)
    return Computation(context.as_reference(vjp), values, terms, in_tf32=tf32, given=given, of_form=of_form)


CHECK = Check(
    NAME,
    "Do the gradients of all inputs match the reference's VJP in float64, and is nothing else written?",
    cases="a few in each dtype, each dim long",
    run=check,
    group="derivatives",
)
