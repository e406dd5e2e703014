"""One run of a work item in its workers: what they report, and how they end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from opwright.checks.process.messages import Doing
from opwright.checks.scheduling.verdict import AT_END
from opwright.results import Finding, NotChecked, Status
from opwright.workers.supervise import Ending

__all__ = ["Attempt"]


@dataclass
class Attempt:
    """One run of a work item in its workers: what they have reported, and how they ended.

    Attributes:
        unconfirmed: a failure that simpler cases are tried for.
        seconds: of each step that has begun; ``step`` is the present one, which began at ``since``.
        unavailable: why the workers cannot load the operator.
        stopped: whether they were ended at the first failure, or the kernel could not run further after one.
    """

    findings: list[Finding] = field(default_factory=list)
    not_checked: list[NotChecked] = field(default_factory=list)
    unconfirmed: Finding | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    step: str = "start"
    since: float = field(default_factory=time.monotonic)
    doing: Doing = field(default_factory=lambda: Doing("start"))
    refused: str = ""
    unavailable: str = ""
    stopped: bool = False
    ending: Ending = field(default_factory=Ending)

    def enter(self, step: str) -> None:
        """A step begins, which ends the one before."""
        now = time.monotonic()
        self.seconds[self.step] = round(self.seconds.get(self.step, 0.0) + now - self.since, 3)
        self.seconds.setdefault(step, 0.0)
        self.step, self.since = step, now

    def refuse(self, why: str) -> None:
        """The kernel cannot run here. What it has failed by then, it has failed."""
        if not self.failures:
            self.refused = why
            return
        message = f"the kernel cannot run further here: {why}"
        rest = Finding(self.doing.check, Status.INCONCLUSIVE, self.doing.case, message)
        self.findings += [*filter(None, [self.unconfirmed]), rest]
        self.unconfirmed, self.stopped = None, True

    @property
    def failures(self) -> list[Finding]:
        """What has failed, simpler cases of which may not have been tried."""
        found = [*self.findings, *([] if self.unconfirmed is None else [self.unconfirmed])]
        return [f for f in found if f.status is Status.FAIL]

    def add_failures(self, failures: Sequence[Finding]) -> None:
        """Take what another run has found, in place of a check that passes in this one."""
        failed = {f.check for f in self.failures}
        added = [f for f in failures if f.check not in failed]
        passed = {f.check for f in added}
        kept = [f for f in self.findings if not (f.status is Status.PASS and f.check in passed)]
        self.findings = [*added, *kept]  # the last one tells where a run has ended

    @property
    def ended_at(self) -> str:
        """The check or step at which the workers ended in a wrong way, or were stopped; empty if they did not."""
        ending = self.ending
        if self.stopped or (ending.went_wrong and not (ending.finished and not ending.broken)):
            return self.findings[-1].check if self.findings else "start"
        return AT_END if ending.went_wrong else ""
