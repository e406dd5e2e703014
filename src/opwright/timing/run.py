"""Times operators: selects kernels, cases and baselines, and makes one report."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

import torch

from opwright.captured.replay import digest_of_calls, refuse_on_others, replaying
from opwright.contract.fingerprint import digest
from opwright.contract.inputs.case import Case, Size
from opwright.errors import CacheError, CheckError
from opwright.machine import this_machine
from opwright.results import BenchReport, CallsReport, Crossover, Measurement
from opwright.runtime.baselines import DERIVED
from opwright.runtime.extensions import load_extensions
from opwright.runtime.op import Op
from opwright.runtime.source_files import digest_of_sources
from opwright.runtime.targets import load_target
from opwright.runtime.tuning.size_tables import device_name
from opwright.sweep.events import QUIET, Events
from opwright.sweep.executor import Executor, LocalExecutor, run_items
from opwright.sweep.journal import Journal, open_journal
from opwright.sweep.work_item import Needs, OnStep
from opwright.timing.analysis.crossover import ranges
from opwright.timing.calls import time_calls
from opwright.timing.case import time_case
from opwright.timing.hardware.clocks import ClockWatch
from opwright.timing.hardware.cores import load_before
from opwright.timing.hardware.precision import PrecisionFlags
from opwright.timing.merge import merged
from opwright.timing.remaining import TimeLeft
from opwright.timing.request import Request, Session, refuse_with_calls
from opwright.timing.roofline import Roofline
from opwright.timing.sizes import bench_cases
from opwright.timing.timers import make_timer

__all__ = ["bench", "load_operators", "measure", "measure_in_items", "store_or_say", "stored_tables"]


_DIRECTIONS = ("forward", "backward")


@overload
def bench(
    *targets: Op | str,
    kernels: Sequence[str] | None = None,
    device: str | None = None,
    sizes: Mapping[str, Sequence[Size]] | None = None,
    dtypes: Sequence[str] = (),
    directions: Sequence[str] = _DIRECTIONS,
    baselines: Sequence[str] | None = None,
    calls: Literal[False] = False,
    quick: bool = False,
    iters: int | None = None,
    limits: bool = True,
    inputs: Path | str | None = None,
    executor: Executor | None = None,
    resume: Path | str | Journal | None = None,
    events: Events = QUIET,
) -> BenchReport: ...
@overload
def bench(
    *targets: Op | str,
    calls: Literal[True],
    kernels: Sequence[str] | None = None,
    device: str | None = None,
    sizes: Mapping[str, Sequence[Size]] | None = None,
    dtypes: Sequence[str] = (),
    quick: bool = False,
    events: Events = QUIET,
) -> CallsReport: ...
def bench(
    *targets: Op | str,
    kernels: Sequence[str] | None = None,
    device: str | None = None,
    sizes: Mapping[str, Sequence[Size]] | None = None,
    dtypes: Sequence[str] = (),
    directions: Sequence[str] = _DIRECTIONS,
    baselines: Sequence[str] | None = None,
    calls: bool = False,
    quick: bool = False,
    iters: int | None = None,
    limits: bool = True,
    inputs: Path | str | None = None,
    executor: Executor | None = None,
    resume: Path | str | Journal | None = None,
    events: Events = QUIET,
) -> BenchReport | CallsReport:
    """Time every kernel of the operators, the reference (eager and compiled), and the baselines from ``op.baseline``.

    Args:
        targets: operators, or their names: a file, ``module``, ``module:op``.
        kernels: only these, by name.
        device: ``cpu`` or ``cuda``; by default the GPU, if there is one.
        sizes: sizes by dim; every combination is timed. Without it, the operator's own or a few derived ones.
        dtypes: names such as ``float16``; by default the contract's first.
        directions: ``forward`` and ``backward`` are timed separately.
        baselines: some of ``reference``, ``torch.compile`` and the operators' own; by default all.
        calls: time the host's part of calls instead, in each way: the operator, torch.ops, each kernel, with a
            gradient, compiled. By default at the smallest size. It takes no ``directions``, ``baselines``, ``iters``,
            ``limits``, ``executor`` or ``resume``, of ``events`` only ``step``, and returns a ``CallsReport``.
        quick: one size, fewer samples, and torch.compile only if it is among ``baselines``.
        iters: the number of samples of each (at least two), instead of the stop rule; more only beside a slow one.
        limits: compare with the machine's roofline limits. Their first measurement takes half a minute.
        inputs: a file of ``ow.capture``: its calls are timed, and no other sizes.
        executor: where operators are timed, such as ``opwright.cluster.RayCluster``: each as a whole on one machine,
            with a GPU for itself, or on the CPU with the machine. By default, in this process.
        resume, events: as for ``ow.check``; each operator's times are written when it is finished. After Ctrl-C the
            report has the measurements so far.

    Returns:
        A report with ``measurements``, ``crossovers`` (the fastest kernels by size, if there are several) and
        ``errors`` (a wrong timed output, a time that the machine cannot have reached). Times are microseconds.

    Raises:
        TargetError, CheckError: a target, kernel, baseline, device, size or dtype does not exist.
    """
    if calls:
        refuse_with_calls(
            directions=directions != _DIRECTIONS, baselines=baselines, iters=iters, limits=not limits,
            executor=executor, resume=resume, events=events != Events(step=events.step),
            inputs=inputs,
        )  # fmt: skip
        return time_calls(
            load_operators(targets), kernels, device, sizes or {}, dtypes, quick=quick, progress=events.step
        )
    request = Request(
        load_operators(targets), kernels, device, sizes or {}, dtypes, directions, baselines, quick, iters,
        events.step, events.finished, limits=limits,
        inputs=str(Path(inputs).resolve()) if inputs else "",
    )  # fmt: skip
    if executor is None and resume is None:
        return measure(request)
    refuse_on_others(inputs, is_local=executor is None or isinstance(executor, LocalExecutor))
    return measure_in_items(request, executor or LocalExecutor(), resume, events.resumed)


def load_operators(targets: Sequence[Op | str]) -> list[Op]:
    """The operators of some targets."""
    return [o for t in targets for o in ([t] if isinstance(t, Op) else load_target(t))]


def measure(request: Request) -> BenchReport:
    """Run a request in this process. Raises CheckError if something in it does not exist."""
    try:
        return _measure(request)
    except _Interrupted as interrupted:
        return interrupted.report


def measure_in_items(
    request: Request,
    executor: Executor,
    resume: Path | str | Journal | None = None,
    on_resume: Callable[[str], None] = QUIET.resumed,
    *,
    store: bool = False,
) -> BenchReport:
    """Run a request operator by operator, where the executor has them run; on each type of GPU, if it is for tables.

    Args:
        store: keep tables of the fastest kernels where they were measured, and here.
    """
    machine = executor.machine
    where = request.device or ("cuda" if machine.has_gpu else "cpu")
    _refuse_unknown(request)
    with replaying(request.operators, request.inputs):
        for operator in request.operators:
            _cases(operator, request, where)  # a size or dtype that does not exist is the caller's mistake
    types = (executor.gpu_types or ("",)) if store and where == "cuda" else ("",)
    items = [BenchItem.of(request, o, where, gpu_type, store) for o in request.operators for gpu_type in types]
    reports: dict[int, BenchReport] = {}
    interrupted: list[BenchReport] = []
    try:
        with contextlib.ExitStack() as stack:
            journal = stack.enter_context(open_journal(resume, machine, on_resume))
            step: OnStep = lambda item, what: request.progress(f"{item.name}: {what}")  # noqa: E731
            for done in stack.enter_context(run_items(items, executor, journal=journal, on_step=step)):
                reports[done.number] = done.result
                for measurement in done.result:
                    request.on_measurement(measurement)
    except _Interrupted as error:
        interrupted.append(error.report)
    except KeyboardInterrupt:
        interrupted.append(BenchReport(machine.to_json(), (), errors=(_INTERRUPTED,)))
    return merged([*(reports[number] for number in sorted(reports)), *interrupted])


@dataclass(frozen=True)
class BenchItem:
    """A work item of a sweep: one operator, all kernels and cases, so that they are compared on one
    machine.

    Attributes:
        request: with this operator only.
    """

    request: Request
    gpu_type: str = ""
    store: bool = False

    @classmethod
    def of(cls, request: Request, operator: Op, device: str, gpu_type: str, store: bool) -> BenchItem:
        own = dataclasses.replace(request, operators=[operator], device=device, progress=_quiet, on_measurement=_quiet)
        return cls(own, gpu_type, store)

    @property
    def name(self) -> str:
        return f"{self.request.operators[0].contract.qualname} on {self.gpu_type or self.request.device}"

    @property
    def key(self) -> str:
        values = [
            f"{f.name}={getattr(self.request, f.name)!r}"
            for f in dataclasses.fields(self.request)
            if f.name not in ("operators", "progress", "on_measurement")
        ]
        return digest(
            "bench",
            digest_of_sources(self.request.operators[0]),
            self.gpu_type,
            str(self.store),
            *values,
            digest_of_calls(self.request.inputs),
        )

    @property
    def needs(self) -> Needs:
        return Needs(gpu=self.request.device == "cuda", gpu_type=self.gpu_type, alone=True)

    @property
    def kind(self) -> type[BenchReport]:
        return BenchReport

    def run(self, on_step: Callable[[str], None]) -> BenchReport:
        report = _measure(dataclasses.replace(self.request, progress=on_step))
        if self.store:
            report = stored_tables(self.request.operators, report)
        return report

    def without_result(self, why: str, remedy: str) -> BenchReport:
        error = f"{self.name}: {why}" + (f"\n  → {remedy}" if remedy else "")
        return BenchReport({}, (), errors=(error,))


def stored_tables(operators: Sequence[Op], report: BenchReport) -> BenchReport:
    """Store the tables of a report in this machine's cache folder; the report says so. Raises CacheError."""
    stored: list[Crossover] = []
    for operator in operators:
        own = [dataclasses.replace(c, stored=True) for c in report.crossovers if c.op == operator.contract.qualname]
        if own:
            store_or_say(functools.partial(operator.apply_tuning, own))
        stored += own
    return dataclasses.replace(report, crossovers=tuple(stored))


def store_or_say(action: Callable[[], object]) -> None:
    """Change the stored tables. Raises CacheError if the cache folder cannot be written."""
    try:
        action()
    except OSError as error:
        raise CacheError(
            f"the tuning cannot be stored: {error}", fix="set OPWRIGHT_CACHE_DIR to a folder you may write"
        ) from error


class _Interrupted(KeyboardInterrupt):
    """Ctrl-C while something was timed, with the report until then."""

    def __init__(self, report: BenchReport) -> None:
        super().__init__()
        self.report = report


_INTERRUPTED = "interrupted: the report has the measurements until then"


def _quiet(_: object) -> None:
    """Show nothing."""


def _measure(request: Request) -> BenchReport:
    with replaying(request.operators, request.inputs):
        return _measure_cases(request)


def _measure_cases(request: Request) -> BenchReport:
    machine, load = this_machine(), load_before()
    where = request.device or ("cuda" if machine.has_gpu else "cpu")
    if where == "cuda" and not machine.has_gpu:
        raise CheckError("the device must be one of this machine, got cuda without a CUDA GPU", fix="use --device cpu")
    _refuse_unknown(request)
    cases = {id(o): _cases(o, request, where) for o in request.operators}
    load_extensions(build=False)
    timer = make_timer(where)
    roofline = Roofline(where, timer, machine, request.progress) if request.limits else None
    watch = ClockWatch()
    if where == "cuda":
        watch.start(torch.cuda.current_device())
    flags = PrecisionFlags()
    left = TimeLeft(sum(_passes(o, request, where) * len(cases[id(o)]) for o in request.operators))
    found: list[Measurement] = []
    crossovers: list[Crossover] = []
    errors: list[str] = []
    passes_over = 0
    interrupted = False
    try:
        for operator in request.operators:
            session = Session(operator, request, where, timer, watch, roofline, flags, left, errors)
            for case in cases[id(operator)]:
                for measurement in _with_errors(session, case, time_case(session, case)):
                    found.append(measurement)
                    request.on_measurement(measurement)
                passes_over += _passes(operator, request, where)
                left.reached(passes_over)
            crossovers += _crossovers(session)  # only after a complete sweep
    except KeyboardInterrupt:
        interrupted = True
        errors.append(_INTERRUPTED)
    report = BenchReport(
        {**machine.to_json(), **watch.state()},
        tuple(found),
        () if roofline is None else roofline.limits,
        tuple(errors),
        tuple(crossovers),
        {**flags.to_json(), **timer.settings(), **load},
    )
    if interrupted:
        raise _Interrupted(report)
    return report


def _cases(operator: Op, request: Request, device: str) -> list[Case]:
    return bench_cases(
        operator.contract, device, sizes=request.sizes, dtypes=request.dtypes, quick=request.quick, sweep=request.sweep
    )  # fmt: skip


def _passes(operator: Op, request: Request, device: str) -> int:
    """The maximum number of measurement passes of one case: for each candidate and direction, host time and each state
    of the cache."""
    named = [k for k in operator.kernels if request.kernels is None or k in request.kernels]
    candidates = len(named) + sum(map(request.wants, (*DERIVED, *operator.baselines)))
    has_backward = operator.parts["autograd"].origin != "missing" and not operator.contract.signature.mutated
    backward = "backward" in request.directions and has_backward
    ways = 1 + sum(c == "cold" or device == "cuda" for c in request.caches)
    return candidates * ways * (("forward" in request.directions) + backward)


def _crossovers(session: Session) -> Iterator[Crossover]:
    """The fastest kernels by size, for each dtype in which several were timed; from several sizes, except for ``tune``,
    which needs a table in any case."""
    device = torch.device(session.device)
    for dtype in dict.fromkeys(p.dtype for p in session.points):
        points = [p for p in session.points if p.dtype == dtype]
        several_sizes = len({p.elements for p in points}) > 1 or session.request.sweep
        if several_sizes and len({k for p in points for k in p.rounds}) > 1:
            yield Crossover(
                session.op.contract.qualname,
                session.device,
                device_name(device),
                dtype,
                ranges(points, list(session.op.kernels)),
                tuple(sorted({p.elements for p in points})),
                datetime.date.today().isoformat(),
            )


def _with_errors(session: Session, case: Case, measurements: Iterator[Measurement]) -> Iterator[Measurement]:
    """The measurements of a case; an exception, such as out of memory, is recorded and does not end other cases."""
    try:
        yield from measurements
    except Exception as error:  # anything that an operator raises
        session.errors.append(f"{session.op.contract.qualname} ({case}) raised {type(error).__name__}: {error}")


def _refuse_unknown(request: Request) -> None:
    operators = request.operators
    known = sorted({k for o in operators for k in o.kernels})
    own = dict.fromkeys(name for o in operators for name in o.baselines)
    for what, selected, known_names in (
        ("kernel", request.kernels or (), known),
        ("baseline", request.baselines or (), [*DERIVED, *own]),
        ("direction", request.directions, ["forward", "backward"]),
    ):
        for name in selected:
            if name not in known_names:
                raise CheckError(
                    f"the {what} must be one of {', '.join(known_names) or 'none'}, got {name!r}",
                    fix="name one of them",
                )
