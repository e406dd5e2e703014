"""The check "gradients of ranks": the gradients of an operator that communicates, on every rank of a group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.check import Check
from opwright.checks.comparison.difference import describe_difference
from opwright.checks.context import Context
from opwright.checks.each_case import check_each_case
from opwright.checks.exceptions import Raised
from opwright.checks.observation import Observation, SkippedCase
from opwright.checks.ranks.answers import RankError
from opwright.checks.ranks.context import (
    JointObservation,
    RankContext,
    inconclusive_if_late,
    rank_context,
    spread,
    what_failed,
)
from opwright.checks.ranks.joint import JointComputation, OfRank, Question
from opwright.contract import derive
from opwright.contract.inputs.sizes import elements
from opwright.results import Finding, NotChecked, Origin

__all__ = ["CHECK", "NAME", "check"]

NAME = "gradients of ranks"
_MOST_CASES = 8


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """The gradients on each rank, of the sum over all ranks, as torch differentiates collectives."""
    contract = context.op.contract
    if not contract.signature.groups:
        return
    if context.op.parts["autograd"].origin is Origin.MISSING or contract.functional is None:
        yield NotChecked(NAME, context.op.parts["autograd"].how)
        return
    own = rank_context(context, NAME)
    if isinstance(own, NotChecked | Finding):
        yield own
    elif isinstance(own, RankContext):
        chosen = [case for case in own.cases if case.is_plain and elements(contract, case) > 0]
        own.cases = spread(chosen, _MOST_CASES)
        for found in check_each_case(own, NAME, _find_wrong_gradient):
            yield inconclusive_if_late(found, None)


def _find_wrong_gradient(context: Context, run: Observation) -> str | SkippedCase | None:
    assert isinstance(context, RankContext)
    assert isinstance(run, JointObservation)
    if run.failed:
        return SkippedCase("the forward is wrong")
    contract = context.op.contract.functional
    assert contract is not None  # check has returned
    arguments = [own.arguments for own in run.by_rank]
    tracked = derive.differentiable_arguments(contract, arguments[0])
    incoming = [_incoming(own, contract.signature.visible, rank) for rank, own in enumerate(run.by_rank)]
    if not any(tracked) or not any(g is not None for g in incoming[0]):
        return SkippedCase("nothing in it can be differentiated")
    asked = [(list(a), g) for a, g in zip(arguments, incoming, strict=True)]
    joint = JointComputation.of(context.ask, Question("", tuple(tracked), next(context._numbers)), asked)
    try:
        _ = joint.rounded, joint.exact
        answers = context.ranks.gradients(arguments, tracked, [g[: contract.signature.visible] for g in incoming])
        failed = what_failed(answers)
        if failed:
            return failed
        names = [
            a.name for a, v in zip(contract.signature.arguments, arguments[0], strict=True) for _ in tree.tensors([v])
        ]
        named = [name for name, need in zip(names, tracked, strict=True) if need]
        for rank, answer in enumerate(answers):
            if answer.wrong:
                return SkippedCase(answer.wrong) if answer.undefined else f"rank {rank}: {answer.wrong}"
            wrong = _compare(OfRank(joint, rank), named, answer.outputs)
            if wrong is not None:
                return f"rank {rank}: {wrong}"
    except Raised as error:
        return SkippedCase(f"the reference has no derivative to compare with: {error}")
    except RankError as error:
        return SkippedCase(str(error))
    return None


def _incoming(run: Observation, visible: int, rank: int) -> list[torch.Tensor | None]:
    """A gradient for each output that can be differentiated, with other values on each rank."""

    def drawn(output: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(output.numel() * 1000 + rank)
        return torch.randn(output.shape, dtype=torch.float64, generator=generator).to(output.dtype)

    return [drawn(o) if i < visible and derive.differentiable(o) else None for i, o in enumerate(run.expected)]


def _compare(reference: OfRank, names: Sequence[str], got: Any) -> str | None:
    for i, (name, grad) in enumerate(zip(names, got, strict=True)):
        expected = reference.rounded[i]
        actual = torch.zeros_like(expected) if grad is None else grad
        if actual.shape != expected.shape:
            return f"the gradient of {name!r} has shape {list(actual.shape)}, expected {list(expected.shape)}"
        wrong = reference.wrong(i, actual)
        if wrong.any():
            return f"the gradient of {name!r} is wrong: {describe_difference(actual, expected, wrong)}"
    return None


CHECK = Check(
    NAME,
    "Are the gradients on each rank those of the sum over all ranks?",
    cases="eight",
    run=check,
    group="derivatives",
)
