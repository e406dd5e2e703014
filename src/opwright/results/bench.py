"""The results of a benchmark: times, comparisons, roofline limits, and the report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = [
    "BenchReport", "Comparison", "ComparisonVerdict", "Crossover", "Estimate", "Measurement", "RooflineLimit",
    "SizeRange",
]  # fmt: skip


class ComparisonVerdict(StrEnum):
    """How a kernel's time compares with a baseline's."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    UNCLEAR = "UNCLEAR"


@dataclass(frozen=True)
class Estimate:
    """A time in microseconds: the median of ``n`` samples, and its 95 % confidence interval."""

    median: float
    lo: float
    hi: float
    n: int


@dataclass(frozen=True)
class Comparison:
    """A kernel's time divided by a baseline's (below 1 the kernel is faster), with its 95 % interval."""

    verdict: ComparisonVerdict
    ratio: float
    lo: float
    hi: float


@dataclass(frozen=True)
class Measurement:
    """One kernel, one case, one direction, one state of the cache.

    Attributes:
        case: dims by name, and ``dtype``.
        gpu_us: GPU time; None for a CPU.
        host_us: host time: until the call returns.
        cache: ``cold`` (inputs are not in the cache) or ``warm``.
        bytes, flops: minimum of bytes moved, and floating-point operations, from the contract.
        roofline_fraction: the achieved fraction of the machine's nearest limit; None if it was not measured.
        bound: the nearest limit, ``bandwidth`` or ``arithmetic``.
        comparisons: the comparisons by baseline.
        notes: remarks for the reader: timers that disagree, discarded samples.
        first_values: the first two output values, as a sanity check.
        raw: every sample that was kept, in microseconds.
        device_name: the name of the GPU or the processor.
        host: the name of the machine, if it is one of a cluster.
    """

    op: str
    kernel: str
    backend: str
    device: str
    direction: str
    case: dict[str, Any]
    cache: str
    gpu_us: Estimate | None
    host_us: Estimate
    bytes: int
    flops: int
    bound: str = ""
    roofline_fraction: float | None = None
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    first_values: tuple[float, ...] = ()
    reproduce: str = ""
    raw: tuple[float, ...] = ()
    device_name: str = ""
    host: str = ""

    @property
    def time_us(self) -> Estimate:
        """The main time: GPU time, or host time for a CPU."""
        return self.gpu_us or self.host_us


@dataclass(frozen=True)
class RooflineLimit:
    """A measured limit of this machine: bytes per second by size, or FLOP per second by dtype."""

    name: str
    device: str
    unit: str
    by: dict[str, float]


@dataclass(frozen=True)
class SizeRange:
    """The fastest kernel for cases of ``least`` elements up to, but not including, ``below`` (None: no upper bound)."""

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
    """The fastest kernels by size, for one operator on one device in one dtype.

    Attributes:
        device_name: the name of the GPU or the processor.
        ranges: without gaps, from 0 elements up; the elements of a case are those of all its tensor arguments.
        sizes: the measured numbers of elements; for others, the nearest one decides.
        measured: the date (YYYY-MM-DD).
        stored: whether calls use it from now on.
    """

    op: str
    device: str
    device_name: str
    dtype: str
    ranges: tuple[SizeRange, ...]
    sizes: tuple[int, ...] = ()
    measured: str = ""
    stored: bool = False


@dataclass(frozen=True)
class BenchReport:
    """The measurements of one ``opwright bench`` or ``opwright tune``; ``to_json`` is what ``--json`` writes.

    Attributes:
        machine: on which it was measured; of a cluster, the first one.
        machines: of a cluster, every machine by its host's name, with its limits as ``roofline``.
        settings: the conditions of all measurements: torch's precision flags, threads, features of the timer.
    """

    machine: dict[str, Any]
    measurements: tuple[Measurement, ...]
    roofline: tuple[RooflineLimit, ...] = ()
    errors: tuple[str, ...] = ()
    crossovers: tuple[Crossover, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    schema: str = "opwright.bench/2"
    machines: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self.measurements)

    def __repr__(self) -> str:
        failed = f", {len(self.errors)} errors" if self.errors else ""
        return f"<BenchReport: {len(self.measurements)} measurements{failed}>"

    def to_json(self) -> dict[str, Any]:
        """The report as plain lists, dictionaries, strings and numbers."""
        from opwright.results.json_form import to_json

        return {"schema": self.schema, **to_json(self)}
