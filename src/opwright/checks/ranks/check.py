"""The checks "ranks" and "gradients of ranks": an operator that communicates, on every rank of a group.

Each case has the same sizes and layouts on each rank, and other values but for arguments marked ``ow.replicated``. The
kernel runs in one process for each rank, the reference in as many others, over gloo. Other checks of such an operator
run in a group of one process.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.comparison.tolerance import ErrorSizes, describe_difference
from opwright.checks.context import Context
from opwright.checks.exceptions import Raised
from opwright.checks.observation import Observation, SkippedCase
from opwright.checks.outputs import values
from opwright.checks.ranks.answers import RankError, Ranks
from opwright.checks.ranks.context import JointObservation, RankContext, what_failed
from opwright.checks.ranks.joint import JointComputation, OfRank, Question
from opwright.contract import derive
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.sizes import elements
from opwright.results import Finding, NotChecked, Origin, Status

__all__ = ["GRADIENTS", "MOST_RANKS", "NAME", "check", "check_gradients"]

NAME, GRADIENTS = "ranks", "gradients of ranks"
# A judge has a connection to each process of two such groups.
MOST_RANKS = 64
# At most so many cases on all ranks, by level; and of gradients.
_MOST_CASES = {"smoke": 3, "quick": 60, "full": 400}
_MOST_OF_GRADIENTS = 8
# Cases come smallest first, and each is asked of many processes.
_TRIES = 12
# No dim is longer: what a collective does depends on sizes less than what a kernel does, and other checks have these.
_LONGEST = 2049


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """The results of each rank, in cases of its own sizes."""
    own = _context_of(context, NAME)
    if isinstance(own, RankContext):
        sizes = ErrorSizes()
        for found in own.check_each_case(NAME, functools.partial(_find_error, sizes=sizes)):
            yield _judged(found, sizes)
    elif own is not None:
        yield own


def check_gradients(context: Context) -> Iterator[Finding | NotChecked]:
    """The gradients on each rank, of the sum over all ranks, as torch differentiates collectives."""
    contract = context.op.contract
    if not contract.signature.groups:
        return
    if context.op.parts["autograd"].origin is Origin.MISSING or contract.functional is None:
        yield NotChecked(GRADIENTS, context.op.parts["autograd"].how)
        return
    own = _context_of(context, GRADIENTS)
    if isinstance(own, NotChecked | Finding):
        yield own
    elif isinstance(own, RankContext):
        chosen = [case for case in own.cases if case.is_plain and elements(contract, case) > 0]
        own.cases = _spread(chosen, _MOST_OF_GRADIENTS)
        for found in own.check_each_case(GRADIENTS, _find_wrong_gradient):
            yield _judged(found, None)


def _judged(found: Finding | NotChecked, sizes: ErrorSizes | None) -> Finding | NotChecked:
    """A rank that does not return may be slow, unless it waits for others."""
    if isinstance(found, NotChecked):
        return found
    if found.status is Status.FAIL and "the kernel does not return" in found.message:
        found = dataclasses.replace(found, status=Status.INCONCLUSIVE, remedy="allow more time with --timeout")
    return dataclasses.replace(found, error_histogram=sizes.histogram() if sizes is not None else None)


def _context_of(context: Context, name: str) -> RankContext | Finding | NotChecked | None:
    """The context of all ranks, in which the cases are chosen; None if the operator does not communicate."""
    contract = context.op.contract
    if not contract.signature.groups:
        return None
    ranks = context.ranks
    if isinstance(ranks, str):
        return NotChecked(name, ranks or "no other processes were started")
    if contract.random:
        return NotChecked(name, "results are random, and are compared in a group of one process only")
    try:
        context.progress("build", f"{ranks.size} ranks")
        ranks.groups()
    except RankError as error:
        return Finding(name, Status.FAIL if error.of_kernel else Status.INCONCLUSIVE, message=str(error))
    context.progress(name, "")
    own = RankContext(
        context.op,
        context.kernel,
        context.device,
        context.level,
        [],
        context.progress,
        context.suspects,
        context.runs,
        reproduce=context.reproduce,
        shrinks=context.shrinks,
        tries=_TRIES,
        calls=context.calls,
        arguments_on="cpu",
        ranks=ranks,
    )
    own.cases = _cases(context, own, ranks)
    return own


def _cases(context: Context, own: RankContext, ranks: Ranks) -> list[Case]:
    if not context.shrinks:  # one case was asked for
        return [dataclasses.replace(case, ranks=ranks.size) for case in context.cases]
    kernel = context.op.kernels.get(context.kernel)
    allowed = kernel.spec.dtypes if kernel is not None else None
    longest = 129 if context.runs_slowly else _LONGEST
    found = cases(
        context.op.contract, context.level, allowed, admits=own.admits, longest=longest, far=False, ranks=ranks.size
    )
    return _spread(found, _MOST_CASES[context.level])


def _spread(found: Sequence[Case], most: int) -> list[Case]:
    """Some of a list of cases, over all of it."""
    if len(found) <= most:
        return list(found)
    return [found[i * len(found) // most] for i in range(most)]


def _find_error(context: Context, run: Observation, sizes: ErrorSizes) -> str | SkippedCase | None:
    assert isinstance(run, JointObservation)  # as a RankContext makes them
    if run.failed:
        return run.failed
    try:
        for rank, own in enumerate(run.by_rank):
            wrong = values.find_error(context, own, sizes)
            if wrong is not None:
                return f"rank {rank}: {wrong}"
    except RankError as error:
        return SkippedCase(str(error))
    return None


def _find_wrong_gradient(context: Context, run: Observation) -> str | SkippedCase | None:
    assert isinstance(context, RankContext)
    assert isinstance(run, JointObservation)
    if run.failed:
        return SkippedCase("the forward is wrong")
    contract = context.op.contract.functional
    assert contract is not None  # check_gradients has returned
    arguments = [own.arguments for own in run.by_rank]
    tracked = [derive.differentiable(t) for t in tree.tensors(list(arguments[0]))]
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
