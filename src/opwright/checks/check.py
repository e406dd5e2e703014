"""The descriptor of a check. Each check's file has one, beside its function; every list of checks is made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from opwright.results import Finding, NotChecked, Status

if TYPE_CHECKING:
    from opwright.checks.context import Context
    from opwright.checks.observation import SkippedCase

__all__ = ["LEVELS", "Check", "Checker", "Process"]

LEVELS = ("smoke", "quick", "full")
# Examines one observation; returns a description of the error, None if there is none, or why it cannot.
Checker = Callable[["Context", Any], "str | SkippedCase | None"]


class Process(Enum):
    """The process that runs a check."""

    CHECKER = "checker"  # no kernel runs in it, so that none can deceive the check
    KERNEL = "kernel"  # that of the kernel, for what the kernel does there


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: as in reports and ``--check``; the file has the same one.
        question: what it asks of a kernel.
        cases: which cases it runs, in words.
        run: yields findings, and what it could not check.
        worst: the worst status of its findings: FAIL, or WARNING if results are right all the same.
        levels: those at which it runs unless it is asked for by name.
        group: the checks that a cluster runs in one work item; empty: in each item, at its end.
        examines: for a check of every case, its checker: each case runs once for all such checks.
    """

    name: str
    question: str
    cases: str
    run: Callable[[Context], Iterator[Finding | NotChecked]]
    process: Process = Process.CHECKER
    worst: Status = Status.FAIL
    levels: tuple[str, ...] = LEVELS
    group: str = ""
    examines: Checker | None = None
