"""The check "ranks": an operator that communicates, on every rank of a group.

Each case has the same sizes and layouts on each rank, and other values but for arguments marked ``ow.replicated``. The
kernel runs in one process for each rank, the reference in as many others, over gloo. Other checks of such an operator
run in a group of one process.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from opwright.checks.check import Check
from opwright.checks.comparison.difference import ErrorSizes
from opwright.checks.context import Context
from opwright.checks.each_case import check_each_case
from opwright.checks.observation import Observation, SkippedCase
from opwright.checks.outputs import values
from opwright.checks.ranks.answers import RankError
from opwright.checks.ranks.context import JointObservation, RankContext, inconclusive_if_late, rank_context
from opwright.results import Finding, NotChecked

__all__ = ["CHECK", "NAME", "check"]

NAME = "ranks"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """The results of each rank, in cases of its own sizes."""
    own = rank_context(context, NAME)
    if isinstance(own, RankContext):
        sizes = ErrorSizes()
        for found in check_each_case(own, NAME, functools.partial(_find_error, sizes=sizes)):
            yield inconclusive_if_late(found, sizes)
    elif own is not None:
        yield own


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


CHECK = Check(
    NAME,
    "Is each rank of an operator that communicates right, with the same collectives in the same order?",
    cases="up to sixty on two ranks",
    run=check,
    group="derivatives",
)
