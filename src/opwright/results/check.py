"""What a check finds: findings, verdicts, and the report that holds them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = [
    "CheckReport", "ErrorHistogram", "Finding", "KernelFinding", "NotChecked", "OtherThread", "Status", "Verdict",
]  # fmt: skip


class Status(StrEnum):
    """How a finding or a verdict ends."""

    PASS = "pass"
    FAIL = "fail"
    REFUSED = "refused"


@dataclass(frozen=True)
class ErrorHistogram:
    """How many output elements had an error between each two ``edges`` (the first and last bin hold what is beyond).

    ``unit`` says what an error of 1 is.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    unit: str = ""


@dataclass(frozen=True)
class Finding:
    """What one family of checks found about one kernel. ``case`` names the smallest failing input."""

    check: str
    status: Status
    case: str = ""
    message: str = ""
    reproduce: str = ""
    error_histogram: ErrorHistogram | None = None


@dataclass(frozen=True)
class KernelFinding:
    """One thing that a CUDA kernel did on the simulator and must not do, and where in its source.

    Attributes:
        kind: such as "out-of-bounds", "race" or "barrier"; docs/simulator.md lists them.
        message: what happened, in a sentence.
        kernel: as it was named when it was compiled.
        block: ``blockIdx`` of the thread that did it.
        thread: its ``threadIdx``.
        file: the source's name; empty where it is not known.
        line: its line; 0 where it is not known.
        source_line: what stands there.
        other: for what takes two, the other thread: its block, thread, file, line and source line.
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

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file or "somewhere"
        lines = [f"{where}: {self.kind}: {self.message}"]
        lines += [f"    {self.source_line}"] if self.source_line else []
        lines.append(f"    in {self.kernel}, block {self.block}, thread {self.thread}")
        if self.other is not None:
            place = f" at {self.other.file}:{self.other.line}" if self.other.line else ""
            lines.append(f"    and block {self.other.block}, thread {self.other.thread}{place}")
            lines += [f"    {self.other.source_line}"] if self.other.source_line else []
        return "\n".join(lines)


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
    """Something that was not looked at, and why: silence is never a pass."""

    check: str
    why: str

    @classmethod
    def in_cases(cls, check: str, count: int, example: str, reason: str) -> NotChecked:
        """What was skipped in some cases only, with one of them."""
        return cls(check, f"{count} skipped cases, such as {example}: {reason}")

    @property
    def reason(self) -> str:
        """``why`` without the cases: what several kernels may have in common."""
        return found[3] if (found := self._in_cases) else self.why

    @property
    def cases(self) -> int:
        """How many cases were skipped; 0 if the reason is not about single cases."""
        return int(found[1]) if (found := self._in_cases) else 0

    @property
    def example(self) -> str:
        """One of the skipped cases."""
        return found[2] if (found := self._in_cases) else ""

    @property
    def _in_cases(self) -> re.Match[str] | None:
        # A case holds colons ("layout=sliced:x"), but never one before a space.
        return re.fullmatch(r"(\d+) skipped cases, such as (.*?): (.*)", self.why, re.DOTALL)


@dataclass(frozen=True)
class Verdict:
    """Everything that was found about one kernel on one device."""

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

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.status is Status.FAIL)


@dataclass(frozen=True)
class CheckReport:
    """The verdicts of one ``opwright check``; ``to_json`` is what ``--json`` writes."""

    machine: dict[str, Any]
    verdicts: tuple[Verdict, ...]
    schema: str = "opwright.check/2"

    @property
    def passed(self) -> bool:
        """True if something was checked and nothing failed. Refused kernels do not fail a report."""
        ran = [v for v in self.verdicts if v.status is not Status.REFUSED]
        return bool(ran) and all(v.status is Status.PASS for v in ran)

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
        lines = []
        for v in self.verdicts:
            lines.append(f"{v.status.upper():<8} {v.op} {v.kernel} [{v.backend}, {v.device}] {v.reason}".rstrip())
            for finding in v.failures:
                lines.append(f"    {finding.check}: {finding.message}")
                if finding.reproduce:
                    lines.append(f"    reproduce: {finding.reproduce}")
        return "\n".join(lines)
