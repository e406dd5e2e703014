"""The results of ``opwright judge``: one row for each candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwright.results.check import CheckReport, Finding, Status, Verdict

__all__ = ["JudgeReport", "Judged", "Times"]

# The check that names why a candidate is wrong.
_CHEATS = "cheats"


@dataclass(frozen=True)
class Times:
    """How long a call of a candidate takes at the task's own sizes, in microseconds, with inputs outside of the cache.

    Attributes:
        us, lo_us, hi_us, samples: the median, its 95 % interval, and the number of samples.
        eager_us, compiled_us: of the reference, as it is and compiled by torch.compile; 0 if it was not timed.
        limit_us: what the machine's nearest limit allows; 0 if it was not measured.
        why_none: why there is no time; then all others are 0.
        tuned_us: of the reference, compiled with max-autotune; 0 if it was not timed.
        why_not_tuned: why not, if it was asked for.
    """

    us: float = 0.0
    lo_us: float = 0.0
    hi_us: float = 0.0
    samples: int = 0
    eager_us: float = 0.0
    compiled_us: float = 0.0
    limit_us: float = 0.0
    device_name: str = ""
    why_none: str = ""
    tuned_us: float = 0.0
    why_not_tuned: str = ""

    @property
    def speedup(self) -> float:
        """Over the reference; 0 if either was not timed."""
        return self.eager_us / self.us if self.us else 0.0

    @property
    def others(self) -> list[tuple[str, float]]:
        """What else was timed, and the machine's limit, in microseconds."""
        compiled = (("torch.compile", self.compiled_us), ("max-autotune", self.tuned_us))
        named = (("eager", self.eager_us), *compiled, ("machine's limit", self.limit_us))
        return [(name, us) for name, us in named if us]

    @property
    def sol_score(self) -> float:
        """SOL-ExecBench's score: 1 at the machine's limit, 0.5 for the reference's time; 0 if either is not known."""
        if not self.us or not self.limit_us or self.eager_us <= self.limit_us:
            return 0.0
        return 1 / (1 + (self.us - self.limit_us) / (self.eager_us - self.limit_us))


@dataclass(frozen=True)
class Judged:
    """One candidate, and what was found.

    Attributes:
        format: the format in which it was published.
        candidate: its file; with the function in it, as in ``ours.py:softmax``, if the file has several candidates.
        task: the file of its reference.
        line: that of its class or function in its file; 1 if it is not known.
        status: the verdict. THIN also where only the sizes of the task are possible.
        claimed: what was recorded of it under the format's own rule: "correct", "wrong", or "".
        by_rule: what that rule says here, of the task's own inputs: "correct", "wrong", or "" if they did not run.
        reason: why there is no verdict; or what makes it THIN.
        published: what the format's own file of results says of it, such as the number of the problem.
        contract: the declaration of its task's operator, and the task's own sizes, as Python; "" if there is none.
        fixed: what its contract takes as fixed, and why.
        times: how long it takes; None if it was not timed.
        verdict: all findings; None if nothing was checked.
    """

    format: str
    candidate: str
    task: str
    status: Status
    claimed: str = ""
    by_rule: str = ""
    reason: str = ""
    published: Mapping[str, Any] = field(default_factory=dict)
    contract: str = ""
    fixed: tuple[str, ...] = ()
    times: Times | None = None
    verdict: Verdict | None = None
    line: int = 1

    @property
    def file(self) -> Path:
        """Its file, without the function in it."""
        file, _, entry = self.candidate.rpartition(":")
        return Path(file if file and entry.isidentifier() else self.candidate)

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
        unwritten: how many verdicts are not in the file of ``resume=``, and why; empty if all are.
    """

    machine: dict[str, Any]
    rows: tuple[Judged, ...]
    unread: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    sandbox: str = ""
    partial: str = ""
    unwritten: str = ""
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

    def fast(self, p: float) -> float:
        """KernelBench's fast_p: the share of all candidates that are right, and more than ``p`` times as fast as the
        reference."""
        fast = [row for row in self.rows if row.status.is_right and row.times is not None and row.times.speedup > p]
        return len(fast) / len(self.rows) if self.rows else 0.0

    def as_check(self) -> CheckReport:
        """The verdicts as a report of checks."""
        return CheckReport(self.machine, tuple(row.verdict for row in self.rows if row.verdict), partial=self.partial)

    def __repr__(self) -> str:
        return f"<JudgeReport: {len(self.rows)} candidates, {len(self.unread)} paths that are no task>"

    def to_json(self) -> dict[str, Any]:
        """The report as plain lists, dictionaries, strings and numbers."""
        from opwright.results.json_form import to_json

        return {"schema": self.schema, **to_json(self)}
