"""The context of the checks of ranks: each observation is one call on every rank of a group."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opwright.checks.comparison.difference import ErrorSizes
from opwright.checks.comparison.tolerance import Computation
from opwright.checks.context import Context
from opwright.checks.exceptions import Raised
from opwright.checks.observation import Observation, Prepared, SkippedCase, copy_of
from opwright.checks.ranks.answers import RankAnswer, RankError, Ranks
from opwright.checks.ranks.joint import JointComputation, OfRank, Question
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.cases import cases
from opwright.contract.process_group import ProcessGroup
from opwright.errors import ArgumentError, CheckError
from opwright.results import Finding, NotChecked, Status

__all__ = [
    "MOST_RANKS", "JointObservation", "PreparedRanks", "RankContext", "inconclusive_if_late", "is_of_others",
    "rank_context", "spread", "what_failed",
]  # fmt: skip
# A checker process has a connection to each process of two such groups.
MOST_RANKS = 64
# At most so many cases on all ranks, by level.
_MOST_CASES = {"smoke": 3, "quick": 60, "full": 400}
# Cases come smallest first, and each is asked of many processes.
_TRIES = 12
# No dim is longer: what a collective does depends on sizes less than what a kernel does, and other checks have these.
_LONGEST = 2049


@dataclass
class PreparedRanks(Prepared):
    """A case for every rank; ``arguments`` are those of rank 0, ``reference`` is that of all."""

    by_rank: list[Prepared] = field(default_factory=list)


@dataclass
class JointObservation(Observation):
    """One call on every rank. ``failed`` says what is wrong apart from results, and then there are none."""

    by_rank: list[Observation] = field(default_factory=list)
    failed: str = ""


@dataclass
class RankContext(Context):
    """A context whose cases run on all ranks of a group."""

    ranks: Ranks = None  # type: ignore[assignment]  # always given
    _numbers: Any = field(default_factory=itertools.count)

    def prepare(self, case: Case, *, draw: int = 0) -> Prepared | SkippedCase:
        try:
            arguments = self._arguments(case, draw)
            chosen = self.ranks.chosen(arguments)
        except (CheckError, ArgumentError) as error:  # no values of these sizes
            return SkippedCase(error.message)
        except RankError as error:
            return SkippedCase(str(error))
        if len(set(chosen)) == 1 and chosen[0] != self.kernel:
            return SkippedCase("the kernel is not applicable (dtypes, when)")
        joint = JointComputation.of(self.ask, Question("", number=next(self._numbers)), arguments)
        try:
            _ = joint.rounded
        except Raised as error:
            return SkippedCase(f"the reference raises {error.kind}: {_first_line(str(error.args[0]))}")
        except RankError as error:
            return SkippedCase(str(error))

        def of_rank(rank: int) -> Callable[[], Computation]:
            return functools.cache(lambda: OfRank(joint, rank))  # type: ignore[return-value]  # what comparisons use

        by_rank = [Prepared(case, own, of_rank(rank)) for rank, own in enumerate(arguments)]
        return PreparedRanks(case, arguments[0], lambda: joint, by_rank)

    def ask(self, question: Question, arguments: Sequence[Any]) -> list[Any]:
        """What the reference gives on each rank."""
        return self.ranks.evaluate(question, arguments)

    def _arguments(self, case: Case, draw: int) -> list[tuple[Any, ...]]:
        """Those of each rank: the same sizes and numbers, and other values, but for what is replicated."""
        each = [
            self._with_group(arguments_of(self.op.contract, case, "cpu", draw=1 + draw + rank, group=group), group)
            for rank, group in enumerate(self.ranks.groups())
        ]
        same = [i for i, a in enumerate(self.op.contract.signature.arguments) if a.replicated]
        return [tuple(copy_of(each[0][i]) if i in same else v for i, v in enumerate(own)) for own in each]

    def _with_group(self, arguments: Sequence[Any], group: str) -> tuple[Any, ...]:
        """A sample has the group of the process that made it."""
        groups = self.op.contract.signature.groups
        return tuple(ProcessGroup(group) if i in groups else value for i, value in enumerate(arguments))

    def _run(self, case: Case) -> Observation | SkippedCase:
        prepared = self.prepare(case)
        if isinstance(prepared, SkippedCase):
            return prepared
        assert isinstance(prepared, PreparedRanks)  # as this class makes them
        arguments = [each.arguments for each in prepared.by_rank]
        try:
            _ = prepared.reference.exact
            before = [copy_of(own) for own in arguments]
            answers = self.ranks.results(arguments)
        except Raised as error:
            return SkippedCase(f"the reference raises {error.kind} in float64: {_first_line(str(error.args[0]))}")
        except RankError as error:
            return SkippedCase(str(error))
        runs = [
            Observation(case, each.arguments, each.compute, old, answer.outputs)
            for each, old, answer in zip(prepared.by_rank, before, answers, strict=True)
        ]
        joint = JointObservation(case, prepared.arguments, prepared.compute, before[0], (), by_rank=runs)
        joint.failed = what_failed(answers)
        return joint


def what_failed(answers: Sequence[RankAnswer]) -> str:
    """What is wrong with a call on all ranks, apart from its results: the first cause, and what it did to others."""
    for rank, answer in enumerate(answers):
        if answer.ended:
            return f"rank {rank}: the kernel {answer.ended}"
    late = [rank for rank, answer in enumerate(answers) if answer.hung is not None]
    raised = {rank: a.outputs for rank, a in enumerate(answers) if isinstance(a.outputs, Raised)}
    own = {rank: error for rank, error in raised.items() if not is_of_others(error)}
    if own:
        error = next(iter(own.values()))
        others = sorted(raised.keys() - own.keys())
        then = f"\n{_ranks(others)} waited in a collective that it did not call" if others else ""
        return f"{_ranks(sorted(own))}: the kernel raised {error}{then}"
    if late:
        where = answers[late[0]].hung
        what = "waits in a collective for other ranks" if answers[late[0]].communicates else "does not return"
        return f"{_ranks(late)}: the kernel {what}{where}"
    if raised or any(answer.fence for answer in answers):
        return _out_of_step(answers, raised)
    for rank, answer in enumerate(answers):
        if answer.unwaited > 0:
            return (
                f"rank {rank}: the kernel has returned, and has not waited for {answer.unwaited} of its collectives: "
                "call wait_tensor on their results"
            )
    return ""


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


_OF_OTHERS = (
    "mismatch between collectives",
    "monitoredBarrier",
    "Connection closed by peer",
    "Connection reset by peer",
)


def is_of_others(error: Raised) -> bool:
    """Whether torch raised it because of what other ranks do."""
    return any(text in str(error.args[0]) for text in _OF_OTHERS)


# What torch says of the rank that raises, which comes first. What it says of the others may be garbled.
_FINGERPRINT = re.compile(
    r"Rank (\d+) is running collective: CollectiveFingerPrint\(SequenceNumber=\d+,? ?OpType=(\w+)"
    r"(?:, TensorShape=(\[[^\]]*\]), TensorDtypes=(\w+))?"
)


def _out_of_step(answers: Sequence[RankAnswer], raised: Mapping[int, Raised]) -> str:
    """What each rank did when another one called something else."""
    told = {rank: _FINGERPRINT.search(str(error.args[0])) for rank, error in raised.items()}
    if not raised or None in told.values():
        text = next((str(e.args[0]) for e in raised.values()), "") or next(a.fence for a in answers if a.fence)
        return f"the ranks are out of step\n{_first_line(text)}"
    at = next((error.at for error in raised.values() if error.at), "")
    elsewhere = [rank for rank, found in told.items() if found is not None and int(found[1]) != rank]
    if elsewhere:  # ranks have other numbers in the default group, in which one process more waits
        what = f"{_ranks(elsewhere)}: the kernel communicates in the default group, not in the group that it is given"
        return f"{what}\nit {_doing(told[elsewhere[0]])}{at}"
    each = [f"\nrank {rank} {_doing(told.get(rank))}" for rank in range(len(answers))]
    return f"the ranks are out of step{''.join(each)}{at}"


def _doing(found: re.Match[str] | None) -> str:
    if found is None:
        return "has returned from the kernel"
    _, name, shape, dtype = found.groups()
    return f"calls {name}{f' of {shape} {dtype.lower()}' if shape else ''}"


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:300]


def rank_context(context: Context, name: str) -> RankContext | Finding | NotChecked | None:
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
        context.target,
        [],
        dataclasses.replace(context.request, tries=_TRIES),
        context.reports,
        calls=context.calls,
        arguments_on="cpu",
        ranks=ranks,
    )
    own.cases = _cases(context, own, ranks)
    return own


def _cases(context: Context, own: RankContext, ranks: Ranks) -> list[Case]:
    if not context.request.shrinks:  # one case was asked for
        return [dataclasses.replace(case, ranks=ranks.size) for case in context.cases]
    kernel = context.op.kernels.get(context.kernel)
    allowed = kernel.spec.taken_dtypes if kernel is not None else None
    longest = 129 if context.runs_slowly else _LONGEST
    level = context.request.level
    found = cases(context.op.contract, level, allowed, admits=own.admits, longest=longest, far=False, ranks=ranks.size)
    return spread(found, _MOST_CASES[level])


def spread(found: Sequence[Case], most: int) -> list[Case]:
    """Some of a list of cases, over all of it."""
    if len(found) <= most:
        return list(found)
    return [found[i * len(found) // most] for i in range(most)]


def inconclusive_if_late(found: Finding | NotChecked, sizes: ErrorSizes | None) -> Finding | NotChecked:
    """A rank that does not return may be slow, unless it waits for others."""
    if isinstance(found, NotChecked):
        return found
    if found.status is Status.FAIL and "the kernel does not return" in found.message:
        found = dataclasses.replace(found, status=Status.INCONCLUSIVE, remedy="allow more time with --timeout")
    return dataclasses.replace(found, error_histogram=sizes.histogram() if sizes is not None else None)
