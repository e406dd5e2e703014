"""The context of the checks of ranks: each observation is one call on every rank of a group."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opwright.checks.comparison.tolerance import Computation
from opwright.checks.context import Context
from opwright.checks.exceptions import Raised
from opwright.checks.observation import Observation, Prepared, SkippedCase, copy_of
from opwright.checks.ranks.answers import RankAnswer, RankError, Ranks
from opwright.checks.ranks.joint import JointComputation, OfRank, Question
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.case import Case
from opwright.contract.process_group import ProcessGroup
from opwright.errors import ArgumentError, CheckError

__all__ = ["JointObservation", "PreparedRanks", "RankContext", "is_of_others", "what_failed"]


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
