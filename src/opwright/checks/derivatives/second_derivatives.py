"""The check "second derivatives": those of a custom gradient, against the reference's. Derived ones are torch's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.comparison.tolerance import Computation, describe_difference
from opwright.checks.context import Context
from opwright.checks.derivatives import gradients
from opwright.checks.observation import Observation, copy_of, to_cpu
from opwright.contract import derive
from opwright.contract.contract import Contract
from opwright.results import Coverage, Finding, NotChecked, Origin, Status

__all__ = ["NAME", "check"]

NAME = "second derivatives"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Differentiate the gradients of a few typical cases again."""
    contract = context.op.contract.functional
    if context.op.parts["autograd"].origin is not Origin.CUSTOM or contract is None or contract.random:
        return
    cases = gradients.differentiable_cases(context, context.typical_cases(8))[:2]
    for case in cases:
        context.progress(NAME, str(case))
        run = context.observe(case)
        assert isinstance(run, Observation)  # typical_cases returns only cases that ran
        wrong = _check_case(context, contract, run)
        if isinstance(wrong, NotChecked):
            yield wrong
            return
        if wrong is not None:
            yield context.failed(NAME, str(case), wrong)
            return
    if cases:
        message = "of the custom gradient"
        yield Finding(NAME, Status.PASS, message=message, coverage=Coverage(len(cases), len(cases)))


def _check_case(context: Context, contract: Contract, run: Observation) -> str | NotChecked | None:
    try:
        inputs, outputs = _forward(context, run)
        visible = outputs[: contract.signature.visible]
        incoming = [_incoming(o) if derive.differentiable(o) else None for o in visible]
        incoming += [None] * (len(outputs) - len(visible))
        got = _second(inputs, [o for o in visible if derive.differentiable(o)], [g for g in incoming if g is not None])
    except Exception:  # the check "gradients" reports what fails in the first derivative
        return NotChecked(NAME, "the custom gradient cannot be differentiated")
    if got is None:
        return NotChecked(NAME, "the custom gradient has no derivative")
    expected = _expected(context, run, inputs, incoming)
    try:
        _ = expected.rounded, expected.exact
    except Exception:  # torch may have no second derivative of the reference
        return NotChecked(NAME, "the reference has no second derivative")
    for i, actual in enumerate(got):
        wrong = expected.wrong(i, actual.detach().cpu())
        if wrong.any():
            return f"of input {i}: {describe_difference(actual.detach().cpu(), expected.rounded[i], wrong)}"
    return None


def _forward(context: Context, run: Observation) -> tuple[list[Any], tuple[Any, ...]]:
    inputs = tree.map_tensors(lambda t: t.detach().requires_grad_(derive.differentiable(t)), list(run.arguments))
    form = context.op.functional
    with context.op.only(context.kernel):
        return inputs, form.contract.unpack(form.contract.signature.call(form.with_saved, inputs))


def _incoming(output: torch.Tensor) -> torch.Tensor:
    return gradients.incoming_gradient(output, "contiguous", str(output.device))


def _second(
    inputs: Sequence[Any], outputs: Sequence[torch.Tensor], incoming: Sequence[torch.Tensor]
) -> list[torch.Tensor] | None:
    """The gradient of a weighted sum of the gradients; None if they have none."""
    wanted = [t for t in tree.tensors(list(inputs)) if t.requires_grad]
    first = torch.autograd.grad(outputs, wanted, incoming, create_graph=True, allow_unused=True)
    return _of_sum(first, wanted)


def _of_sum(first: Sequence[torch.Tensor | None], wanted: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    known = [(g, _incoming(g)) for g in first if g is not None and g.requires_grad]
    if not known:
        return None
    found = torch.autograd.grad([g for g, _ in known], wanted, [w for _, w in known], allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, wanted, strict=True)]


def _expected(context: Context, run: Observation, inputs: Sequence[Any], incoming: Sequence[Any]) -> Computation:
    contract = context.op.contract
    needs = [t.requires_grad for t in tree.tensors(list(inputs))]
    elements = max(t.numel() for t in tree.tensors(list(inputs)))

    def second(values: Sequence[Any]) -> list[torch.Tensor]:
        arguments, grads = values
        remaining = iter(needs)
        tracked = tree.map_tensors(lambda t: t.detach().requires_grad_(next(remaining)), list(arguments))
        with torch.enable_grad():
            first = derive.vjp(contract, tracked, grads, needs, create_graph=True)
            wanted = [t for t in tree.tensors(tracked) if t.requires_grad]
            found = _of_sum(first, wanted)
        return found if found is not None else [torch.zeros_like(t) for t in wanted]

    arguments = to_cpu(copy_of(run.before)), to_cpu(list(incoming))
    return Computation(context.as_reference(second), arguments, lambda i: elements)
