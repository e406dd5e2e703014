"""The results of a check: findings, verdicts, and the report."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from opwright.errors import CheckFailedError
from opwright.results.consequences import same_fault

__all__ = [
    "CheckReport", "Coverage", "ErrorHistogram", "Finding", "NotChecked", "PeakMemory",
    "Status", "Verdict", "worst",
]  # fmt: skip


class Status(StrEnum):
    """The outcome of a finding or a verdict, the worst first.

    ``INCONCLUSIVE``: it did not end in time, or a check itself failed, so that neither is known. ``THIN``: nothing
    wrong was found, but too little ran. ``WARNING``: ordinary results are right, and something else should be known.
    ``REFUSED``: it cannot run here.
    """

    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    THIN = "thin"
    WARNING = "warning"
    PASS = "pass"
    REFUSED = "refused"

    @property
    def word(self) -> str:
        """As in "3 failed"."""
        return _WORDS[self]

    @property
    def mark(self) -> str:
        """One character, distinct without colour."""
        return _MARKS[self]

    @property
    def is_right(self) -> bool:
        """Whether results are right, as far as they were compared."""
        return self in (Status.PASS, Status.WARNING, Status.THIN)


_WORDS = {
    Status.FAIL: "failed", Status.INCONCLUSIVE: "inconclusive", Status.THIN: "thin", Status.WARNING: "with warnings",
    Status.PASS: "passed", Status.REFUSED: "cannot run here",
}  # fmt: skip
_MARKS = {
    Status.FAIL: "✗", Status.INCONCLUSIVE: "?", Status.THIN: "◔", Status.WARNING: "!", Status.PASS: "✓",
    Status.REFUSED: "–",
}  # fmt: skip


def worst(statuses: Iterable[Status]) -> Status:
    """The first of the statuses in the order of ``Status``; REFUSED if there is none."""
    found = set(statuses)
    return next((status for status in Status if status in found), Status.REFUSED)


@dataclass(frozen=True)
class Coverage:
    """The number of cases that a check ran, of those that it would have run if every one had been applicable."""

    run: int
    generated: int

    def __str__(self) -> str:
        return f"{self.run} of {self.generated} cases"


@dataclass(frozen=True)
class ErrorHistogram:
    """The numbers of output elements with an error between ``edges`` (smaller and larger errors are in the outer bins).

    ``unit`` is the unit of the edges.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    unit: str = ""


@dataclass(frozen=True)
class PeakMemory:
    """What a call takes of memory, in bytes.

    Attributes:
        kernel: the most that the kernel takes at a time, its results included.
        contract: the arguments, the results, and the most that the reference takes at a time.
    """

    case: str
    kernel: int
    contract: int


@dataclass(frozen=True)
class Finding:
    """The result of one check of one kernel.

    Attributes:
        case: the smallest failing input; empty if it is not about one.
        ordinary_case: the most ordinary input that was found to fail in the same way, if the smallest is not ordinary.
        coverage: the cases that the check ran; None if it has no cases.
        remedy: for a warning or too little coverage, what to do about it.
        peak_memory: of calls of growing size, if the check measures it.
    """

    check: str
    status: Status
    case: str = ""
    message: str = ""
    reproduce: str = ""
    error_histogram: ErrorHistogram | None = None
    coverage: Coverage | None = None
    remedy: str = ""
    peak_memory: tuple[PeakMemory, ...] = ()
    ordinary_case: str = ""

    @property
    def case_lines(self) -> list[str]:
        """The case, and the more ordinary one, each with what it is."""
        label = "smallest failing case" if self.status is Status.FAIL else "case"
        ordinary = [f"also fails: {self.ordinary_case}"] * bool(self.ordinary_case)
        return [f"{label}: {self.case}"] * bool(self.case) + ordinary

    def __repr__(self) -> str:
        return f"<Finding {self.check}: {self.status}{f', {self.case}' if self.case else ''}>"

    def __str__(self) -> str:
        """The smallest failing case, what is wrong, what to do, and the command that repeats it, as in a terminal."""
        lines = [*self.case_lines, *self.message.splitlines()]
        lines += [f"→ {self.remedy}"] * bool(self.remedy) + [f"again: {self.reproduce}"] * bool(self.reproduce)
        return "\n".join(lines)


@dataclass(frozen=True)
class NotChecked:
    """Something that was not checked, and why."""

    check: str
    why: str

    @classmethod
    def in_cases(cls, check: str, count: int, example: str, reason: str) -> NotChecked:
        """A check that skipped some cases, with one of them."""
        return cls(check, f"{count} skipped cases, such as {example}: {reason}")

    @property
    def reason(self) -> str:
        """``why`` without the cases, which several kernels may have in common."""
        return found[3] if (found := self._in_cases) else self.why

    @property
    def cases(self) -> int:
        """The number of skipped cases; 0 if the reason is not about single cases."""
        return int(found[1]) if (found := self._in_cases) else 0

    @property
    def example(self) -> str:
        """One of the skipped cases."""
        return found[2] if (found := self._in_cases) else ""

    @property
    def _in_cases(self) -> re.Match[str] | None:
        # A case may contain colons ("layout=sliced:x"), but none before a space.
        return re.fullmatch(r"(\d+) skipped cases, such as (.*?): (.*)", self.why, re.DOTALL)


@dataclass(frozen=True)
class Verdict:
    """All results of one kernel on one device.

    Attributes:
        seconds: from the start of its processes to their end; of checks that ran in several work items, the sum.
        step_seconds: those of each step: "start", "load", "build", "load kernel", and the checks by name.
    """

    op: str
    kernel: str
    backend: str
    device: str
    status: Status
    reason: str = ""
    parts: dict[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    seconds: float = 0.0
    step_seconds: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        checks = dict.fromkeys(f.check for f in self.findings if f.status is self.status is not Status.PASS)
        aside = f" ({', '.join(checks)})" if checks else ""
        return f"<Verdict {self.op} {self.kernel} on {self.device}: {self.status}{aside}>"

    def __str__(self) -> str:
        """Each finding but those that pass, the worst first, as in a terminal; one line if all pass."""
        title = f"{self.op} {self.kernel} on {self.device}"
        shown = [f for f in self.separate if f.status not in (Status.PASS, Status.REFUSED)]
        if self.status not in (Status.PASS, *(f.status for f in shown)):
            shown.append(Finding("check", self.status, message=self.reason))
        texts = []
        for finding in sorted(shown, key=lambda f: list(Status).index(f.status)):
            what = finding.status.word if finding.status is Status.REFUSED else finding.check
            lines = [f"{finding.status.mark} {title}: {what}", *str(finding).splitlines()]
            if others := self.same_fault_as(finding):
                at = len(lines) - bool(finding.reproduce)  # before the command
                lines.insert(at, f"the same fault: {', '.join(others)}")
            texts.append("\n  ".join(lines))
        return "\n\n".join(texts) or f"{self.status.mark} {title}: {self.status.word}"

    @functools.cached_property
    def _same_fault(self) -> dict[int, int]:
        return same_fault(self.findings)

    @property
    def separate(self) -> tuple[Finding, ...]:
        """The findings but those that follow from the fault of another one."""
        return tuple(f for i, f in enumerate(self.findings) if i not in self._same_fault)

    def same_fault_as(self, finding: Finding) -> list[str]:
        """The checks whose findings follow from the fault of this one."""
        checks = (self.findings[i].check for i, j in self._same_fault.items() if self.findings[j] is finding)
        return list(dict.fromkeys(checks))

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.status is Status.FAIL)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that ``--strict`` counts as failures: warnings, and too little coverage."""
        return tuple(f for f in self.findings if f.status in (Status.WARNING, Status.THIN))

    @property
    def inconclusive(self) -> tuple[Finding, ...]:
        """The steps that did not end in time."""
        return tuple(f for f in self.findings if f.status is Status.INCONCLUSIVE)


@dataclass(frozen=True)
class CheckReport:
    """The verdicts of one ``opwright check``; ``to_json`` is what ``--json`` writes.

    Attributes:
        partial: why it holds the verdicts of a part of the kernels only; empty if it holds all.
    """

    machine: dict[str, Any]
    verdicts: tuple[Verdict, ...]
    schema: str = "opwright.check/3"
    partial: str = ""

    @property
    def passed(self) -> bool:
        """True if something was checked, and nothing failed or did not end in time. Refused kernels do not fail a
        report, nor do warnings and too little coverage (see ``strictly_passed``)."""
        return self.ran_anything and not self.partial and not self._has(Status.FAIL, Status.INCONCLUSIVE)

    @property
    def strictly_passed(self) -> bool:
        """True if it passed without a warning and with enough coverage."""
        return self.passed and not self._has(Status.THIN, Status.WARNING)

    def _has(self, *statuses: Status) -> bool:
        return any(v.status in statuses for v in self.verdicts)

    @property
    def ran_anything(self) -> bool:
        return any(v.status is not Status.REFUSED for v in self.verdicts)

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """The report as plain lists, dictionaries, strings and numbers."""
        from opwright.results.json_form import to_json

        return {"schema": self.schema, **to_json(self)}

    def raise_if_failed(self, *, strict: bool = False) -> None:
        """Raise an error with the failing cases and the commands that repeat them, unless ``passed`` is true.

        A step that did not end in time raises too, because nothing is known about it. So does a report in which no
        kernel could run.

        Args:
            strict: also raise for warnings and too little coverage, as ``--strict`` does.

        Raises:
            CheckFailedError: an AssertionError; its ``report`` is this one.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        if not (self.strictly_passed if strict else self.passed):
            raise CheckFailedError(str(self), report=self)

    def __repr__(self) -> str:
        return f"<CheckReport: {self._counts}>"

    def __str__(self) -> str:
        """The number of verdicts of each status, then those that did not pass, the worst first."""
        first = f"{self._counts}; {self.partial}" if self.partial else self._counts
        shown = [v for v in self.verdicts if v.status is not Status.PASS]
        return "\n\n".join([first, *map(str, sorted(shown, key=lambda v: list(Status).index(v.status)))])

    @property
    def _counts(self) -> str:
        counts = Counter(v.status for v in self.verdicts)
        return ", ".join(f"{counts[s]} {s.word}" for s in Status if counts[s]) or "nothing was checked"
