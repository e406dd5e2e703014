"""The request of a benchmark, and the session of one operator's run: timer, roofline limits, log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opwright.contract.inputs.case import Case, Size
from opwright.errors import CheckError
from opwright.results import Measurement, RooflineLimit
from opwright.runtime.op import Op
from opwright.timing.analysis.crossover import Point
from opwright.timing.analysis.statistics import StopRule
from opwright.timing.hardware.clocks import ClockWatch
from opwright.timing.hardware.precision import PrecisionFlags
from opwright.timing.remaining import TimeLeft
from opwright.timing.roofline import Roofline
from opwright.timing.timers import Timer

__all__ = ["Request", "Session", "refuse_with_calls"]


@dataclass(frozen=True)
class Request:
    """What to measure; ``bench`` documents the fields.

    Attributes:
        caches: ``cold`` and ``warm``, or only one of them.
        sweep: more sizes by default, for a table of the fastest kernels by size.
        inputs: a file of recorded calls, which are timed in the place of other cases.
        limits: measure the machine's roofline limits, which takes a while the first time.
    """

    operators: Sequence[Op]
    kernels: Sequence[str] | None = None
    device: str | None = None
    sizes: Mapping[str, Sequence[Size]] = field(default_factory=dict)
    dtypes: Sequence[str] = ()
    directions: Sequence[str] = ("forward", "backward")
    baselines: Sequence[str] | None = None
    quick: bool = False
    iters: int | None = None
    progress: Callable[[str], None] = lambda what: None
    on_measurement: Callable[[Measurement], None] = lambda measurement: None
    caches: Sequence[str] = ("cold", "warm")
    sweep: bool = False
    limits: bool = True
    inputs: str = ""

    @property
    def rule(self) -> StopRule:
        if self.iters is not None:
            return StopRule(min_samples=self.iters, min_seconds=0, max_samples=self.iters)
        return StopRule(min_seconds=0.05, max_seconds=0.4, spread=0.02) if self.quick else StopRule()

    def wants(self, baseline: str) -> bool:
        """Whether to time this baseline. A quick run compiles the reference only on request: that takes long."""
        if self.baselines is None:
            return not (self.quick and baseline == "torch.compile")
        return baseline in self.baselines


@dataclass
class Session:
    """The shared state of one operator's run."""

    op: Op
    request: Request
    device: str
    timer: Timer
    watch: ClockWatch
    roofline: Roofline | None
    flags: PrecisionFlags
    left: TimeLeft
    errors: list[str]
    points: list[Point] = field(default_factory=list)

    @property
    def limits(self) -> tuple[RooflineLimit, ...]:
        """Those of the machine; none if they are not wanted."""
        return () if self.roofline is None else self.roofline.limits

    def log(self, what: str) -> None:
        self.request.progress(what)

    def wrong(self, candidate: str, case: Case, why: str) -> None:
        self.errors.append(f"{self.op.contract.qualname} {candidate} ({case}): {why}")


def refuse_with_calls(**options: Any) -> None:
    """Raise CheckError for the first option that a measurement of calls does not take."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise CheckError(
                f"{name}= must be left out with calls=True", fix="time calls and kernels one after another"
            )
