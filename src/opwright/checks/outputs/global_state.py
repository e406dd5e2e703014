"""The check "global state": settings of the process, such as the default dtype, are after a call what they were.

What a kernel leaves changed is a warning: its results are right, but those of later code may not be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from opwright.checks.check import Check
from opwright.checks.context import Context
from opwright.checks.each_case import check_each_case
from opwright.checks.observation import Observation
from opwright.checks.settings.state import RANDOM, RANDOM_STATES, SET_UP_ONCE
from opwright.results import Finding, NotChecked, Status

__all__ = ["CHECK", "NAME", "check", "find_error"]

NAME = "global state"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Compare the settings before and after the call of every case."""
    for found in check_each_case(context, NAME, find_error):
        if isinstance(found, Finding) and found.status is Status.FAIL:
            yield dataclasses.replace(
                found, status=Status.WARNING, remedy="leave it alone, or set it back, also after an exception"
            )
        else:
            yield found


def find_error(context: Context, run: Observation) -> str | None:
    """The first setting that the kernel left changed."""
    assert run.call is not None  # only runs of a case are examined
    for name, how in run.call.changed.items():
        if name == RANDOM and context.op.contract.random is True:
            continue
        if name in SET_UP_ONCE and name not in context.calls.observe(run.arguments).changed:
            continue  # a library did it, such as LLVM when Triton first compiles, in whichever call that is
        draws = ", though the contract does not say that it draws random numbers" if name in RANDOM_STATES else ""
        more = f": {how}" if how else draws
        return f"the kernel changes {name}{more}"
    return None


CHECK = Check(
    NAME,
    "Does the kernel leave the settings, threads, files and processes of its process as they were?",
    cases="all",
    run=check,
    worst=Status.WARNING,
    group="values",
    examines=find_error,
)
