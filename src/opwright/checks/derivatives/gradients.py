"""The check "gradients": the gradients of every input, against the reference's VJP in float64."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright import tree
from opwright.checks.chosen_cases import large_cases, long_cases, typical_cases, with_other_shapes, with_values
from opwright.checks.comparison.tolerance import Computation, describe_difference
from opwright.checks.context import KERNEL, MOST_FAILURES, Context, kind_of
from opwright.checks.derivatives.derivative import Doubt, derivative_of
from opwright.checks.derivatives.kinks import difference, run_with, values_with_kinks
from opwright.checks.kernel_calls import Gradients, Meanwhile
from opwright.checks.observation import Observation, Prepared, SkippedCase, copy_of, to_cpu
from opwright.checks.state import SET_UP_ONCE
from opwright.checks.time_limit import time_of
from opwright.contract import derive
from opwright.contract.contract import Contract
from opwright.contract.dtypes import element_bytes
from opwright.contract.inputs.case import TARGETS, Case
from opwright.contract.inputs.layouts import arrange
from opwright.results import Coverage, Finding, NotChecked, Origin, Status

__all__ = [
    "NAME",
    "backward_of",
    "check",
    "compare",
    "compare_with_reference",
    "differentiable_cases",
    "expected_gradients",
    "incoming_gradient",
    "incoming_gradients",
]

NAME = "gradients"
# Values where a custom gradient may overflow, or lose small differences, and the forward does not.
_OTHER_VALUES = ("confident", TARGETS)
# So much of a step may the reference's gradient take; it is then computed again for errors of rounding.
_SHARE_OF_A_STEP = 1 / 3
# Of a tensor's name, the gradients of the reference, which of these it is, and the kernel's: what is wrong with that.
OfEach = Callable[[str, Computation, int, torch.Tensor], "str | Doubt | None"]


@dataclass(frozen=True)
class _Pass:
    """A forward and a backward.

    Attributes:
        inputs: which of the differentiable tensors among the arguments need a gradient; all, if it is None.
        output: the only one of the differentiable outputs that gets an incoming gradient; all do, if it is None.
        is_kept: whether another forward follows before the backward, and a second backward after it.
        values: those with kinks in place of the case's own.
    """

    case: Case
    layout: str = "contiguous"
    inputs: frozenset[int] | None = None
    output: int | None = None
    is_kept: bool = False
    values: str = ""

    def __str__(self) -> str:
        inputs = "" if self.inputs is None else f", where only {_listed('input', self.inputs)} a gradient"
        output = "" if self.output is None else f", where only output {self.output} is used"
        kept = ", after another forward, and with retain_graph=True" if self.is_kept else ""
        values = f", of {self.values}" if self.values else ""
        return f"with {self.layout} incoming gradient{inputs}{output}{kept}{values}"


def _listed(what: str, places: frozenset[int]) -> str:
    return f"{what} {min(places)} needs" if len(places) == 1 else f"{what}s {', '.join(map(str, sorted(places)))} need"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """A few cases in each floating dtype, with plain, strided and expanded incoming gradients."""
    if context.op.contract.functional is None:
        yield NotChecked(NAME, "it writes a list of tensors or an optional one, and has no derivative")
        return
    if context.op.parts["autograd"].origin is Origin.MISSING:
        yield NotChecked(NAME, context.op.parts["autograd"].how)
        return
    if context.op.contract.random:
        yield NotChecked(NAME, "results are random, so the gradient is not the reference's; state it as an op.property")
        return
    yield from _check_passes(context)


def _check_passes(context: Context) -> Iterator[Finding | NotChecked]:
    passed, known, doubts, unchecked = 0, set[str](), set[str](), set[NotChecked]()
    ran: dict[Case, bool] = {}
    for one in _passes(context):
        case = one.case
        context.progress(NAME, str(case))
        wrong = _check_pass(context, one)
        if isinstance(wrong, NotChecked):
            if wrong not in unchecked:
                yield wrong
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


def _passes(context: Context) -> Iterator[_Pass]:
    """Cases with every layout of the incoming gradient; the first one also with some inputs tracked, and with each
    output alone; those with a long dim with one layout."""
    chosen = _cases(context)
    for case in chosen:
        for layout in ("contiguous", "transposed", "expanded"):
            yield _Pass(case, layout)
    for case in chosen[:1]:
        yield from _partial_passes(context, case)
    for case in differentiable_cases(context, long_cases(context)):
        if case not in chosen:
            yield _Pass(case)
    if context.op.parts["autograd"].origin is Origin.CUSTOM:  # a derived one is the reference's, at kinks as elsewhere
        same = [case for case in _typical(context) if chosen and case.dtypes == chosen[0].dtypes]
        for case in same[len(same) // 2 :][:1]:
            yield from (_Pass(case, values=values) for values in values_with_kinks(context, case))
        further = differentiable_cases(context, [*with_other_shapes(context), *with_values(context, _OTHER_VALUES)])
        yield from (_Pass(case) for case in further if case not in chosen)


def _partial_passes(context: Context, case: Case) -> Iterator[_Pass]:
    """Each input alone, each one left out, and each output alone: a backward may have a branch of its own for these."""
    run = context.observe(case)
    if not isinstance(run, Observation):
        return
    inputs = frozenset(range(sum(map(derive.differentiable, tree.tensors(run.arguments)))))
    some = [*(frozenset({i}) for i in inputs), *(inputs - {i} for i in inputs)]
    yield from (_Pass(case, inputs=each) for each in dict.fromkeys(some) if each and each != inputs)
    outputs = [i for i, o in enumerate(_visible(context, run)) if derive.differentiable(o)]
    yield from (_Pass(case, output=i) for i in outputs if len(outputs) > 1)
    yield _Pass(case, is_kept=True)


def differentiable_cases(context: Context, cases: Sequence[Case]) -> list[Case]:
    """The cases that run and have an input to differentiate by."""
    return [case for case in cases if _is_differentiable(context, case)]


def _cases(context: Context) -> list[Case]:
    """The largest and the smallest typical case in each dtype, past a tile in several dims, and strided ones."""
    by_dtype: dict[Any, list[Case]] = {}
    for case in _typical(context):
        by_dtype.setdefault(case.dtypes, []).append(case)
    chosen = [case for listed in by_dtype.values() for case in (listed[0], listed[-1])]
    strided = typical_cases(context, 2, layouts=("sliced", "transposed"))
    return list(dict.fromkeys([*chosen, *differentiable_cases(context, [*large_cases(context, 2), *strided])]))


def _typical(context: Context) -> list[Case]:
    return differentiable_cases(context, typical_cases(context, 48))


def _is_differentiable(context: Context, case: Case) -> bool:
    run = context.observe(case)
    return isinstance(run, Observation) and any(map(derive.differentiable, tree.tensors(run.arguments)))


def _check_pass(context: Context, one: _Pass) -> str | Doubt | NotChecked | None:
    run = run_with(context, one.case, one.values) if one.values else context.observe(one.case)
    if isinstance(run, SkippedCase):
        return None
    number = itertools.count()
    every = [derive.differentiable(t) for t in tree.tensors(run.arguments)]
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
    context: Context, run: Observation, one: _Pass, tracked: Sequence[bool]
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
    if one.values and isinstance(found.of_inputs, str):
        return None  # the kernel may refuse such values
    of_each = difference if one.values else wrong_gradient
    wrong = compare(context, run, tracked, incoming, found, of_each)
    if wrong is None and meanwhile is not None:
        wrong = _of_second_backward(context, run, tracked, meanwhile.incoming, found)
    return _left_changed(context, found) if wrong is None else wrong


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
    wrong = compare_with_reference(context, run, tracked, incoming, found.again)
    return f"in the second backward, {wrong}" if isinstance(wrong, str) else wrong


def incoming_gradients(context: Context, run: Observation, layout: str) -> list[torch.Tensor | None] | NotChecked:
    """A gradient for each output that can be differentiated."""
    visible = _visible(context, run)
    if not any(map(derive.differentiable, visible)):
        return NotChecked(NAME, "no output has a floating dtype")
    return [incoming_gradient(o, layout, context.arguments_on) if derive.differentiable(o) else None for o in visible]


def backward_of(context: Context, run: Observation) -> Callable[[], Gradients] | None:
    """A forward and backward of a run, for checks that repeat it; None if it has no gradient, or a wrong one, which the
    check "gradients" reports."""
    incoming = incoming_gradients(context, run, "contiguous")
    if isinstance(incoming, NotChecked):
        return None
    tracked = [derive.differentiable(t) for t in tree.tensors(run.arguments)]
    forward_and_backward = functools.partial(context.calls.gradients, run.arguments, tracked, incoming)
    return None if isinstance(forward_and_backward().of_inputs, str) else forward_and_backward


def wrong_gradient(name: str, reference: Computation, i: int, actual: torch.Tensor) -> str | None:
    """How a gradient differs from the reference's."""
    wrong = reference.wrong(i, actual)
    if not wrong.any():
        return None
    return f"the gradient of {name!r} is wrong: {describe_difference(actual, reference.rounded[i], wrong)}"


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
    for what, now, then in (("the incoming gradient", grads, incoming), ("an input", inputs, run.before)):
        for a, b in zip(tree.tensors(list(now)), tree.tensors(list(then)), strict=True):
            if not torch.equal(element_bytes(a).cpu(), element_bytes(b).cpu()):
                return f"the backward wrote {what}"
    return compare_with_reference(context, run, tracked, incoming, found.of_inputs, of_each)


def _visible(context: Context, run: Observation) -> tuple[torch.Tensor, ...]:
    """The outputs that a caller gets."""
    return run.expected[: _contract(context).signature.visible]


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
    if run.case in context.slow_gradients:
        return NotChecked(NAME, context.slow_gradients[run.case])
    contract = _contract(context)
    reference = expected_gradients(context, run, tracked, incoming)
    stop = _SHARE_OF_A_STEP * context.timeout
    try:
        took = time_of(lambda: (reference.rounded, reference.exact), stop, stop / 2)
        if took == math.inf:  # as where torch loops over a long dim
            context.runs(KERNEL)  # the reference may have been stopped as it was about to say so
            why = f"the reference's gradient takes more than {stop:.0f} s, too long with --timeout {context.timeout:g}"
            context.slow_gradients[run.case] = why
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
    visible = run.expected[: contract.signature.visible]
    results = sum(o.numel() for o in visible)

    def terms(i: int) -> int:
        return 2 * run.reference.terms(0) + math.ceil(results / max(1, by[i].numel()))

    def vjp(values: Sequence[Any]) -> list[torch.Tensor]:
        arguments, grads = values
        return derive.vjp(contract, arguments, grads, tracked)

    grads = [*to_cpu(copy_of(list(incoming))), *[None] * (len(run.expected) - len(visible))]
    values = (to_cpu(copy_of(run.before)), grads)
    known = context.known_results
    if known is None:
        return Computation(context.as_reference(vjp), values, terms)
    given, of_form = known.of((NAME, run.case, tuple(tracked)), values), known.of_form((NAME, tuple(tracked)), values)
    return Computation(context.as_reference(vjp), values, terms, given=given, of_form=of_form)
