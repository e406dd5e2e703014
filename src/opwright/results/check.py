"""The results of a check: findings, verdicts, and the report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = [
    "CheckReport", "Coverage", "ErrorHistogram", "Finding", "KernelFinding", "NotChecked", "OtherThread", "PeakMemory",
    "Status", "Verdict", "worst",
]  # fmt: skip


class Status(StrEnum):
    """The outcome of a finding or a verdict, the worst first.

    ``INCONCLUSIVE``: it did not end in time, so that neither is known. ``THIN``: nothing wrong was found, but too
    little ran. ``WARNING``: results are right, and something else should be known. ``REFUSED``: it cannot run here.
    """

    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    THIN = "thin"
    WARNING = "warning"
    PASS = "pass"
    REFUSED = "refused"


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


@dataclass(frozen=True)
class KernelFinding:
    """One error of a CUDA kernel that the simulator found, with its place in the source.

    Attributes:
        kind: such as "out-of-bounds", "race" or "barrier"; docs/simulator.md lists them.
        message: a description of the error.
        kernel: the kernel's name.
        block: ``blockIdx`` of the thread.
        thread: ``threadIdx`` of the thread.
        file: the source's name; empty if it is not known.
        line: the line in it; 0 if it is not known.
        source_line: the text of that line.
        other: for an error of two threads, the other thread: its block, thread, file, line and source line.
        callers: the calls that led to the line, from the innermost to the kernel's own; empty if it is in the kernel.
    """

    kind: str
    message: str
    kernel: str
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    file: str = ""
    line: int = 0
    source_line: str = ""
    other: OtherThread | None = None
    callers: tuple[CallSite, ...] = ()

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file or "unknown place"
        lines = [f"{where}: {self.kind}: {self.message}"]
        lines += [f"    {self.source_line}"] if self.source_line else []
        for caller in self.callers:
            lines.append(f"    called at {caller.file}:{caller.line}: {caller.source_line}".rstrip(": "))
        lines.append(f"    in {self.kernel}, block {self.block}, thread {self.thread}")
        if self.other is not None:
            place = f" at {self.other.file}:{self.other.line}" if self.other.line else ""
            lines.append(f"    and block {self.other.block}, thread {self.other.thread}{place}")
            lines += [f"    {self.other.source_line}"] if self.other.source_line else []
        return "\n".join(lines)


@dataclass(frozen=True)
class CallSite:
    """Where a function was called on the way to a finding."""

    file: str
    line: int
    source_line: str = ""


@dataclass(frozen=True)
class OtherThread:
    """The second thread of a finding."""

    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    file: str = ""
    line: int = 0
    source_line: str = ""


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
        seconds: from the start of its processes to their end; of checks that ran in slices, the sum.
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

    def __str__(self) -> str:
        lines = [f"PARTIAL: {self.partial}"] if self.partial else []
        for v in self.verdicts:
            lines.append(f"{v.status.upper():<12} {v.op} {v.kernel} [{v.backend}, {v.device}] {v.reason}".rstrip())
            for finding in (*v.failures, *v.inconclusive, *v.warnings):
                lines.append(f"    {finding.check}: {finding.message}")
                if finding.reproduce:
                    lines.append(f"    reproduce: {finding.reproduce}")
        return "\n".join(lines)
