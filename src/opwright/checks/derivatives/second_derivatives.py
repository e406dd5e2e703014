"""The check "second derivatives": those of a custom gradient, against the reference's. Derived ones are torch's.

A gradient is differentiated by the inputs and by the incoming gradient. One that is computed without a graph, though it
depends on them, is silently left out of what it becomes part of; torch's ``once_differentiable`` makes that an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.check import Check, Process
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.comparison.tolerance import Computation
from opwright.checks.context import Context
from opwright.checks.derivatives import gradients
from opwright.checks.derivatives.derivative import Doubt, names_of_tensors
from opwright.checks.derivatives.passes import differentiable_cases
from opwright.checks.observation import Observation, copy_of, to_cpu
from opwright.checks.outputs.errors_in_words import describe_errors
from opwright.contract import derive
from opwright.contract.contract import Contract
from opwright.results import Coverage, Finding, NotChecked, Origin, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "second derivatives"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Differentiate the gradients of a few typical cases again."""
    contract = context.op.contract.functional
    if context.op.parts["autograd"].origin is not Origin.CUSTOM or contract is None or contract.random:
        return
    cases = differentiable_cases(context, typical_cases(context, 8))[:2]
    for case in cases:
        context.progress(NAME, str(case))
        run = context.observe(case)
        assert isinstance(run, Observation)  # typical_cases returns only cases that ran
        wrong = _check_case(context, contract, run)
        if isinstance(wrong, NotChecked):
            yield wrong
            return
        if isinstance(wrong, Doubt):
            yield Finding(NAME, Status.WARNING, str(case), wrong.message, remedy=wrong.remedy)
            return
        if wrong is not None:
            yield context.failed(NAME, str(case), wrong)
            return
    if cases:
        message = "of the custom gradient"
        yield Finding(NAME, Status.PASS, message=message, coverage=Coverage(len(cases), len(cases)))


def _check_case(context: Context, contract: Contract, run: Observation) -> str | Doubt | NotChecked | None:
    try:
        inputs, outputs = _forward(context, run)
        visible = outputs[: contract.signature.visible]
        incoming: list[Any] = [_incoming(o).requires_grad_() if derive.differentiable(o) else None for o in visible]
        incoming += [None] * (len(outputs) - len(visible))
        wanted = [*_tracked(inputs), *(g for g in incoming if g is not None)]
        first = _first(inputs, [o for o in visible if derive.differentiable(o)], incoming)
        has_graph = [g is not None and g.requires_grad for g in first]
        got = _accumulated([g for g in first if g is not None and g.requires_grad], wanted)
    except Exception:  # the check "gradients" reports what fails in the first derivative
        return NotChecked(NAME, "the custom gradient cannot be differentiated")
    expected = _expected(context, run, inputs, incoming, has_graph)
    without = _expected(context, run, inputs, incoming, [not has for has in has_graph])
    try:
        _ = expected.rounded, expected.exact, without.exact
    except Exception:  # torch may have no second derivative of the reference
        return NotChecked(NAME, "the reference has no second derivative")
    pairs = zip(names_of_tensors(context, run), tree.tensors(inputs), strict=True)
    names = [*(repr(name) for name, t in pairs if t.requires_grad), *(["the incoming gradient"] * len(wanted))]
    for i, actual in enumerate(got):
        wrong = expected.wrong(i, actual.detach().cpu())
        if wrong.any():
            return f"of {names[i]}: {describe_errors(expected, i, actual.detach().cpu(), wrong)}"
    return _without_graph(names, without, len(got))


def _without_graph(names: Sequence[str], left_out: Computation, count: int) -> Doubt | None:
    """Whether the gradients without a graph depend on something."""
    by = next((names[i] for i in range(count) if bool((left_out.exact[i] != 0).any())), None)
    if by is None:
        return None
    return Doubt(
        f"the custom gradient has no graph, though it depends on {by}: its derivative counts as zero, without an error",
        "compute it with differentiable functions, or decorate the backward with torch's once_differentiable",
    )


def _forward(context: Context, run: Observation) -> tuple[list[Any], tuple[Any, ...]]:
    inputs = derive.leaves(context.op.contract, run.arguments)
    form = context.op.functional
    with context.op.only(context.kernel):
        return inputs, form.contract.unpack(form.contract.signature.call(form.with_saved, inputs))


def _incoming(output: torch.Tensor) -> torch.Tensor:
    return gradients.incoming_gradient(output, "contiguous", str(output.device))


def _tracked(inputs: Sequence[Any]) -> list[torch.Tensor]:
    return [t for t in tree.tensors(list(inputs)) if t.requires_grad]


def _first(
    inputs: Sequence[Any], outputs: Sequence[torch.Tensor], incoming: Sequence[Any]
) -> Sequence[torch.Tensor | None]:
    grads = [g for g in incoming if g is not None]
    found = torch.autograd.grad(outputs, _tracked(inputs), grads, create_graph=True, allow_unused=True)
    return tuple(found)


def _accumulated(first: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradient of a weighted sum of the gradients, by all leaves: so autograd runs through the whole graph, and
    what torch's ``once_differentiable`` has put there raises."""
    if first:
        torch.autograd.backward(first, [_incoming(g) for g in first])
    return [torch.zeros_like(t) if t.grad is None else t.grad for t in leaves]


def _of_sum(first: Sequence[Any], wanted: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradient of a weighted sum of the gradients; zeros, where they have none."""
    known = [(g, _incoming(g)) for g in first if g.requires_grad]
    if not known:
        return [torch.zeros_like(t) for t in wanted]
    found = torch.autograd.grad([g for g, _ in known], wanted, [w for _, w in known], allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, wanted, strict=True)]


def _expected(
    context: Context, run: Observation, inputs: Sequence[Any], incoming: Sequence[Any], chosen: Sequence[bool]
) -> Computation:
    """The reference's second derivatives: those of some of its gradients."""
    contract = context.op.contract
    needs = [t.requires_grad for t in tree.tensors(list(inputs))]
    elements = max(t.numel() for t in tree.tensors(list(inputs)))

    def second(values: Sequence[Any]) -> list[torch.Tensor]:
        arguments, grads = values
        remaining = iter(needs)
        tracked = tree.map_tensors(lambda t: t.detach().requires_grad_(next(remaining)), list(arguments))
        grads = tree.map_tensors(lambda t: t.detach().requires_grad_(), list(grads))
        with torch.enable_grad():
            first = derive.vjp(contract, tracked, grads, needs, create_graph=True)
            wanted = [*_tracked(tracked), *(g for g in grads if g is not None)]
            return _of_sum([g for g, is_chosen in zip(first, chosen, strict=True) if is_chosen], wanted)

    arguments = to_cpu(copy_of(run.before)), to_cpu(list(incoming))
    return Computation(context.as_reference(second), arguments, lambda i: elements, in_tf32=context.op.contract.tf32)


CHECK = Check(
    NAME,
    "Do the second derivatives of a custom gradient match the reference's?",
    cases="two",
    run=check,
    process=Process.KERNEL,
    group="derivatives",
)
