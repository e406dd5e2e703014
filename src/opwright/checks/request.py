"""What is asked of the checks of one kernel, what is called while they run, and what is known of cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from opwright.contract.inputs.case import Case, is_as_long
from opwright.results import Finding

__all__ = ["CaseRecords", "Reports", "Request"]


@dataclass(frozen=True)
class Request:
    """What is asked of the checks of one kernel.

    Attributes:
        level: smoke, quick or full.
        selected: the checks that were asked for; all, if none was.
        timeout: the seconds that one step may take.
        reproduce: the command that repeats a failing case, with the placeholders {check} and {case}.
        shrinks: whether a failing case is replaced by a smaller one; a case that was asked for is shown as it is.
        overlaps: whether the kernel runs on a case while results of the one before are compared.
        tries: how many simpler cases are tried in place of one that fails.
    """

    level: str = "quick"
    selected: tuple[str, ...] = ()
    timeout: float = 60.0
    reproduce: str = ""
    shrinks: bool = True
    overlaps: bool = True
    tries: int = 60


def _nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Reports:
    """What is called while checks run.

    Attributes:
        step: before each step, with the check, the case, and where a crash would happen.
        unconfirmed: with a failure before simpler cases of it are tried, one of which may end the process.
        runs: with who runs from now on: the kernel, unless it says that the reference does; and on which case, if it
            is known.
    """

    step: Callable[..., None] = _nothing
    unconfirmed: Callable[[Finding], None] = _nothing
    runs: Callable[[str, str], None] = _nothing


@dataclass
class CaseRecords:
    """What is known of cases, so that every check leaves out the same ones.

    Attributes:
        defined: cases for which the reference is known to be defined.
        slow: cases that are left out because the reference takes too long, with the reason.
        slow_gradients: cases whose gradients are not compared because the reference's take too long.
        returned: whether the kernel returned results for a case.
        unreturned: cases on which the reference did not return, with the reason; larger ones are left out too.
        uncompiled: cases whose kernel takes too long to compile, with the reason; larger ones are not tried.
        seconds: what calls of the kernel took, by case, where it runs slowly.
    """

    defined: set[Case] = field(default_factory=set)
    slow: dict[Case, str] = field(default_factory=dict)
    slow_gradients: dict[Case, str] = field(default_factory=dict)
    returned: dict[Case, bool] = field(default_factory=dict)
    unreturned: dict[Case, str] = field(default_factory=dict)
    uncompiled: dict[Case, str] = field(default_factory=dict)
    seconds: dict[Case, float] = field(default_factory=dict)

    def too_slow(self, case: Case) -> str:
        """Why the reference does not run on a case, if it takes too long."""
        larger = (why for known, why in self.unreturned.items() if is_as_long(case, known))
        return self.slow.get(case) or next(larger, "")

    def update(self, other: CaseRecords) -> None:
        """Add what another process knows."""
        self.defined |= other.defined
        self.slow |= other.slow
        self.slow_gradients |= other.slow_gradients
        self.returned |= other.returned
        self.unreturned |= other.unreturned
        self.uncompiled |= other.uncompiled
        self.seconds |= other.seconds
