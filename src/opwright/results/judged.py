"""The results of ``opwright judge``: one row for each candidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opwright.results.check import CheckReport, Finding, Status, Verdict

__all__ = ["JudgeReport", "Judged"]

# The check that names why a candidate is wrong.
_CHEATS = "cheats"


@dataclass(frozen=True)
class Judged:
    """One candidate, and what was found.

    Attributes:
        format: the format in which it was published.
        candidate: its file; with the function in it, as in ``ours.py:softmax``, if the file has several candidates.
        task: the file of its reference.
        status: the verdict. THIN also where only the sizes of the task are possible.
        claimed: what was recorded of it under the format's own rule: "correct", "wrong", or "".
        by_rule: what that rule says here, of the task's own inputs: "correct", "wrong", or "" if they did not run.
        reason: why there is no verdict; or what makes it THIN.
        fixed: what its contract takes as fixed, and why.
        verdict: all findings; None if nothing was checked.
    """

    format: str
    candidate: str
    task: str
    status: Status
    claimed: str = ""
    by_rule: str = ""
    reason: str = ""
    fixed: tuple[str, ...] = ()
    verdict: Verdict | None = None

    @property
    def by_format(self) -> str:
        """What the format says: as it was recorded, or else here."""
        return self.claimed or self.by_rule

    @property
    def worst(self) -> Finding | None:
        """The finding that determines the verdict; a cheat before what it leads to."""
        findings = self.verdict.separate if self.verdict is not None else ()
        found = [f for f in findings if f.status is self.status is not Status.PASS]
        return min(found, key=lambda f: f.check != _CHEATS, default=None)


@dataclass(frozen=True)
class JudgeReport:
    """The rows of one ``opwright judge``, the worst first; ``to_json`` is what ``--json`` writes.

    Attributes:
        unread: paths that are no task, each with the reason.
        sandbox: what confined the candidates, in words.
        partial: how much was judged before it was interrupted; empty if all was.
    """

    machine: dict[str, Any]
    rows: tuple[Judged, ...]
    unread: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    sandbox: str = ""
    partial: str = ""
    schema: str = "opwright.judge/1"

    @property
    def passed(self) -> bool:
        """Whether candidates were judged, and none failed or did not end in time."""
        found = {row.status for row in self.rows}
        return bool(found - {Status.REFUSED}) and not found & {Status.FAIL, Status.INCONCLUSIVE} and not self.partial

    @property
    def disagreements(self) -> tuple[Judged, ...]:
        """Candidates that the format's own rule calls correct, and that fail here."""
        return tuple(row for row in self.rows if row.by_format == "correct" and row.status is Status.FAIL)

    def as_check(self) -> CheckReport:
        """The verdicts as a report of checks."""
        return CheckReport(self.machine, tuple(row.verdict for row in self.rows if row.verdict), partial=self.partial)

    def __repr__(self) -> str:
        return f"<JudgeReport: {len(self.rows)} candidates, {len(self.unread)} paths that are no task>"

    def to_json(self) -> dict[str, Any]:
        """The report as plain lists, dictionaries, strings and numbers."""
        from opwright.results.json_form import to_json

        return {"schema": self.schema, **to_json(self)}
