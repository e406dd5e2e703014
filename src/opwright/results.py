"""Plain records that travel from the parts that judge to the parts that show. No torch here.

The JSON forms are part of the public interface; their ``schema`` field is raised when they change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = [
    "Accepted",
    "BenchReport",
    "Ceiling",
    "CheckReport",
    "Choice",
    "Comparison",
    "Crossover",
    "ErrorHistogram",
    "Estimate",
    "Explanation",
    "Finding",
    "Interval",
    "KernelFinding",
    "Measurement",
    "NotChecked",
    "Origin",
    "OtherThread",
    "Part",
    "Probe",
    "Refused",
    "Shown",
    "Status",
    "Verdict",
    "Versus",
]


@dataclass(frozen=True)
class Accepted:
    """A backend or kernel can run here; ``note`` says how, where that is not obvious."""

    note: str = ""


@dataclass(frozen=True)
class Refused:
    """A backend or kernel cannot run here: why, and what a person can do about it."""

    reason: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.remedy})" if self.remedy else self.reason


Probe = Accepted | Refused


class Origin(StrEnum):
    """Where a part of an operator comes from."""

    DERIVED = "derived"
    HAND_WRITTEN = "hand-written"
    MISSING = "missing"


@dataclass(frozen=True)
class Part:
    """One part of an operator (its fake, gradient, vmap rule …) and where it comes from."""

    name: str
    origin: Origin
    how: str


@dataclass(frozen=True)
class Choice:
    """What ``ow.explain`` says of one kernel: it runs, or why it does not."""

    kernel: str
    backend: str
    outcome: Probe
    chosen: bool = False


@dataclass(frozen=True)
class Explanation:
    """Which kernel an operator would run for some arguments, and why not each other one."""

    op: str
    choices: tuple[Choice, ...]
    note: str = ""

    @property
    def chosen(self) -> Choice:
        """The one that would run. There always is one: the reference is the last resort."""
        return next(c for c in self.choices if c.chosen)

    def __str__(self) -> str:
        lines = [f"{self.op} would run {self.chosen.kernel!r} ({self.chosen.backend})"]
        for choice in self.choices:
            mark = "→" if choice.chosen else " "
            match choice.outcome:
                case Accepted(note=note):
                    said = note or ("runs" if choice.chosen else "could run; an earlier one was taken")
                case Refused() as refused:
                    said = f"no: {refused}"
            lines.append(f" {mark} {choice.kernel:<16} {choice.backend:<10} {said}")
        return "\n".join([*lines, *([f"   {self.note}"] if self.note else [])])


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
    schema: str = "opwright.check/1"

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
        return {
            "schema": self.schema,
            "machine": self.machine,
            "verdicts": [dataclasses.asdict(verdict) for verdict in self.verdicts],
        }

    def __str__(self) -> str:
        lines = []
        for v in self.verdicts:
            lines.append(f"{v.status.upper():<8} {v.op} {v.kernel} [{v.backend}, {v.device}] {v.reason}".rstrip())
            for finding in v.failures:
                lines.append(f"    {finding.check}: {finding.message}")
                if finding.reproduce:
                    lines.append(f"    reproduce: {finding.reproduce}")
        return "\n".join(lines)


class Versus(StrEnum):
    """How a kernel's time compares with a baseline's."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    UNCLEAR = "UNCLEAR"


@dataclass(frozen=True)
class Estimate:
    """A time in microseconds: the median of ``n`` samples, and an interval that holds the median with 95 %."""

    median: float
    lo: float
    hi: float
    n: int


@dataclass(frozen=True)
class Comparison:
    """A kernel's time divided by a baseline's (below 1 the kernel is faster), with its 95 % interval."""

    verdict: Versus
    ratio: float
    lo: float
    hi: float


@dataclass(frozen=True)
class Measurement:
    """One kernel, one case, one direction, one state of the cache.

    Attributes:
        case: dims by name, and ``dtype``.
        device_us: time on the device alone; None where a CPU call has no such part.
        call_us: time that the caller waits for the call to return.
        cache: ``cold`` (inputs are not in the cache) or ``warm``.
        bytes, flops: least bytes moved and floating-point operations, from the contract.
        ceiling_fraction: the achieved share of the machine's nearest limit; None if it was not measured.
        ceiling: which limit that is, ``bandwidth`` or ``arithmetic``.
        versus: comparisons by the baseline's name.
        notes: what a reader has to know: a timer that disagrees, discarded samples.
        first_values: the first two output values, as a sanity check.
        raw: every sample kept, in microseconds.
    """

    op: str
    kernel: str
    backend: str
    device: str
    direction: str
    case: dict[str, Any]
    cache: str
    device_us: Estimate | None
    call_us: Estimate
    bytes: int
    flops: int
    ceiling: str = ""
    ceiling_fraction: float | None = None
    versus: dict[str, Comparison] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    first_values: tuple[float, ...] = ()
    reproduce: str = ""
    raw: tuple[float, ...] = ()

    @property
    def time_us(self) -> Estimate:
        """The time that counts: the device's where there is one."""
        return self.device_us or self.call_us


@dataclass(frozen=True)
class Ceiling:
    """A limit of this machine, measured: bytes per second by size, or FLOP per second by dtype."""

    name: str
    device: str
    unit: str
    by: dict[str, float]


@dataclass(frozen=True)
class Interval:
    """The kernel that was fastest for cases of ``least`` elements up to, not including, ``below`` (None: no end)."""

    least: int
    below: int | None
    kernel: str

    def __str__(self) -> str:
        if self.below is None:
            return f"from {_count_text(self.least)} elements" if self.least else "at every size"
        until = f"below {_count_text(self.below)} elements"
        return f"from {_count_text(self.least)}, {until}" if self.least else until


def _count_text(count: int) -> str:
    return f"2^{count.bit_length() - 1}" if count >= 1024 and count & (count - 1) == 0 else f"{count:,}"


@dataclass(frozen=True)
class Crossover:
    """Which kernel wins where, for one operator on one device in one dtype.

    Attributes:
        device_name: the GPU's or the processor's.
        intervals: without gaps, from 0 elements up; the elements of a case are those of all its tensor arguments.
        sizes: the numbers of elements that were measured; between and beyond them, the nearest decides.
        measured: the date (YYYY-MM-DD).
        stored: whether calls follow it from now on.
    """

    op: str
    device: str
    device_name: str
    dtype: str
    intervals: tuple[Interval, ...]
    sizes: tuple[int, ...] = ()
    measured: str = ""
    stored: bool = False


@dataclass(frozen=True)
class BenchReport:
    """The measurements of one ``opwright bench`` or ``opwright tune``; ``to_json`` is what ``--json`` writes.

    ``settings`` tells what held for every subject: torch's precision flags, threads, what the timer could do.
    """

    machine: dict[str, Any]
    measurements: tuple[Measurement, ...]
    ceilings: tuple[Ceiling, ...] = ()
    errors: tuple[str, ...] = ()
    crossovers: tuple[Crossover, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    schema: str = "opwright.bench/1"

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self.measurements)

    def to_json(self) -> dict[str, Any]:
        """The report as plain lists, dictionaries, strings and numbers."""
        return {
            "schema": self.schema,
            "machine": self.machine,
            "ceilings": [dataclasses.asdict(c) for c in self.ceilings],
            "errors": list(self.errors),
            "settings": self.settings,
            "crossovers": [dataclasses.asdict(c) for c in self.crossovers],
            "measurements": [dataclasses.asdict(m) for m in self.measurements],
        }


@dataclass(frozen=True)
class Shown:
    """A text to look at: a kernel's source, or what a compiler made of it. ``language`` is for colours."""

    title: str
    language: str
    text: str
