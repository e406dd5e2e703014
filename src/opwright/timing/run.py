"""Timing operators: which kernels on which cases, beside which baselines, into one report."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree

from opwright.contract import derive
from opwright.contract.cases import Case
from opwright.errors import CheckError
from opwright.machine import this_machine
from opwright.results import Accepted, BenchReport, Ceiling, Crossover, Measurement
from opwright.runtime.baselines import DERIVED
from opwright.runtime.op import Op
from opwright.runtime.targets import load_target, name_target
from opwright.runtime.tuned import count_elements, device_name, dtype_key
from opwright.timing.ceilings import IMPOSSIBLE, fraction_of_ceiling, measure_ceilings
from opwright.timing.clocks import ClockWatch
from opwright.timing.crossover import Point, cost_rounds, intervals
from opwright.timing.measure import Samples, measure_in_turn
from opwright.timing.precision import PrecisionFlags
from opwright.timing.remaining import TimeLeft
from opwright.timing.sizes import bench_cases
from opwright.timing.statistics import StopRule, compare, estimate
from opwright.timing.subjects import (
    BackwardState,
    Subject,
    backward_of,
    baseline_subject,
    compiled_reference,
    eager_reference,
    input_sets,
    kernel_subject,
)
from opwright.timing.timers import Timer, make_timer
from opwright.timing.verify import wrong_gradients, wrong_output

__all__ = ["Request", "bench", "load_operators", "measure"]

# Timers that differ by more than this share (and 2 µs) contradict each other.
_TIMERS_AGREE_WITHIN = 0.25


@dataclass(frozen=True)
class Request:
    """What is to be measured; ``bench`` says what its fields mean.

    Attributes:
        caches: ``cold`` and ``warm``, or only one of them.
        sweep: more sizes by default, as for a table of which kernel wins where.
    """

    operators: Sequence[Op]
    kernels: Sequence[str] | None = None
    device: str | None = None
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dtypes: Sequence[str] = ()
    directions: Sequence[str] = ("forward", "backward")
    baselines: Sequence[str] | None = None
    quick: bool = False
    iters: int | None = None
    progress: Callable[[str], None] = lambda what: None
    on_measurement: Callable[[Measurement], None] = lambda measurement: None
    caches: Sequence[str] = ("cold", "warm")
    sweep: bool = False

    @property
    def rule(self) -> StopRule:
        if self.iters is not None:
            return StopRule(min_samples=self.iters, min_seconds=0, max_samples=self.iters)
        return StopRule(min_seconds=0.05, max_seconds=0.4, spread=0.02) if self.quick else StopRule()

    def wants(self, baseline: str) -> bool:
        return self.baselines is None or baseline in self.baselines


@dataclass
class _Plan:
    """What one operator's run needs to know everywhere."""

    op: Op
    request: Request
    device: str
    timer: Timer
    watch: ClockWatch
    ceilings: tuple[Ceiling, ...]
    flags: PrecisionFlags
    left: TimeLeft
    errors: list[str]
    points: list[Point] = field(default_factory=list)

    def tell(self, what: str) -> None:
        self.request.progress(what)

    def wrong(self, subject: str, case: Case, why: str) -> None:
        self.errors.append(f"{self.op.contract.qualname} {subject} ({case}): {why}")


def bench(
    *targets: Op | str,
    kernels: Sequence[str] | None = None,
    device: str | None = None,
    sizes: Mapping[str, Sequence[int]] | None = None,
    dtypes: Sequence[str] = (),
    directions: Sequence[str] = ("forward", "backward"),
    baselines: Sequence[str] | None = None,
    quick: bool = False,
    iters: int | None = None,
    progress: Callable[[str], None] | None = None,
    on_measurement: Callable[[Measurement], None] | None = None,
) -> BenchReport:
    """Time every kernel of some operators beside the meaning, eager and compiled, and what ``op.baseline`` named.

    Args:
        targets: operators, or what names them: a file, ``module``, ``module:op``.
        kernels: only these, by name.
        device: ``cpu`` or ``cuda``; by default the GPU where there is one.
        sizes: sizes by dim; every combination is timed. Without it, the operator's own or a few derived ones.
        dtypes: names such as ``float16``; by default the contract's first.
        directions: ``forward`` and ``backward`` are timed apart.
        baselines: of ``eager``, ``torch.compile`` and the operators' own; by default all.
        quick: fewer sizes and samples.
        iters: exactly so many samples of each, instead of the stop rule.
        progress, on_measurement: told of what goes on; what was measured when a Ctrl-C comes is kept.

    Returns:
        A report with ``measurements``, ``crossovers`` (which kernel is fastest where, if there are several) and
        ``errors`` (a wrong timed output, a time that the machine cannot have reached). Times are microseconds.

    Raises:
        TargetError, CheckError: something that was asked for does not exist.
    """
    quiet: Any = lambda what: None  # noqa: E731
    return measure(
        Request(
            load_operators(targets), kernels, device, sizes or {}, dtypes, directions, baselines, quick, iters,
            progress or quiet, on_measurement or quiet,
        )
    )  # fmt: skip


def load_operators(targets: Sequence[Op | str]) -> list[Op]:
    """The operators that some targets name or are."""
    return [o for t in targets for o in ([t] if isinstance(t, Op) else load_target(t))]


def measure(request: Request) -> BenchReport:
    """Measure what is asked for. Raises CheckError if something in the request does not exist."""
    machine = this_machine()
    where = request.device or ("cuda" if machine.has_gpu else "cpu")
    if where == "cuda" and not machine.has_gpu:
        raise CheckError("there is no CUDA GPU to time on", fix="use --device cpu")
    _refuse_unknown(request)
    cases = {id(o): _cases(o, request, where) for o in request.operators}
    timer = make_timer(where)
    ceilings = measure_ceilings(where, timer, machine, request.progress)
    watch = ClockWatch()
    if where == "cuda":
        watch.start(torch.cuda.current_device())
    flags = PrecisionFlags()
    left = TimeLeft(sum(_looks(o, request, where) * len(cases[id(o)]) for o in request.operators))
    found: list[Measurement] = []
    crossovers: list[Crossover] = []
    errors: list[str] = []
    behind = 0
    try:
        for operator in request.operators:
            plan = _Plan(operator, request, where, timer, watch, ceilings, flags, left, errors)
            for case in cases[id(operator)]:
                for measurement in _survive(plan, case, _time_case(plan, case)):
                    found.append(measurement)
                    request.on_measurement(measurement)
                behind += _looks(operator, request, where)
                left.reached(behind)
            crossovers += _crossovers(plan)  # not of half a sweep, which says nothing of the sizes it did not reach
    except KeyboardInterrupt:
        errors.append("interrupted: what was measured until then is here")
    return BenchReport(
        {**machine.to_json(), **watch.state()},
        tuple(found),
        ceilings,
        tuple(errors),
        tuple(crossovers),
        {**flags.to_json(), **timer.settings()},
    )


def _cases(operator: Op, request: Request, device: str) -> list[Case]:
    return bench_cases(
        operator.contract,
        device,
        sizes=request.sizes,
        dtypes=request.dtypes,
        declared=operator.declared_sizes,
        quick=request.quick,
        sweep=request.sweep,
    )


def _looks(operator: Op, request: Request, device: str) -> int:
    """How many looks one case takes at most: subjects, in every direction, called and in each state of the cache."""
    named = [k for k in operator.kernels if request.kernels is None or k in request.kernels]
    subjects = len(named) + sum(map(request.wants, (*DERIVED, *operator.baselines)))
    backward = "backward" in request.directions and operator.parts["autograd"].origin != "missing"
    ways = 1 + sum(c == "cold" or device == "cuda" for c in request.caches)
    return subjects * ways * (("forward" in request.directions) + backward)


def _crossovers(plan: _Plan) -> Iterator[Crossover]:
    """Which kernel is fastest where, for each dtype in which several were timed."""
    device = torch.device(plan.device)
    for dtype in dict.fromkeys(p.dtype for p in plan.points):
        points = [p for p in plan.points if p.dtype == dtype]
        if len({k for p in points for k in p.rounds}) > 1:
            yield Crossover(
                plan.op.contract.qualname,
                plan.device,
                device_name(this_machine(), device),
                dtype,
                intervals(points, list(plan.op.kernels)),
                tuple(sorted({p.elements for p in points})),
                datetime.date.today().isoformat(),
            )


def _survive(plan: _Plan, case: Case, measurements: Iterator[Measurement]) -> Iterator[Measurement]:
    """One case that fails (the meaning itself does not fit into memory, say) does not end the others."""
    try:
        yield from measurements
    except Exception as error:  # anything that an operator raises
        plan.errors.append(f"{plan.op.contract.qualname} ({case}) raised {type(error).__name__}: {error}")


def _refuse_unknown(request: Request) -> None:
    operators = request.operators
    known = sorted({k for o in operators for k in o.kernels})
    own = dict.fromkeys(name for o in operators for name in o.baselines)
    for what, asked, there in (
        ("kernel", request.kernels or (), known),
        ("baseline", request.baselines or (), [*DERIVED, *own]),
        ("direction", request.directions, ["forward", "backward"]),
    ):
        for name in asked:
            if name not in there:
                raise CheckError(f"there is no {what} {name!r}", fix=f"there are {', '.join(there)}")


def _time_case(plan: _Plan, case: Case) -> Iterator[Measurement]:
    torch.compiler.reset()
    request = plan.request
    sets = input_sets(plan.op, case, plan.device, plan.timer.cache_bytes, plan.timer.most_bytes)
    subjects = [kernel_subject(plan.op, name) for name in _that_run(plan, sets[0])]
    subjects += [make(plan.op) for name, make in _MAKE_DERIVED.items() if request.wants(name)]
    subjects += [baseline_subject(plan.op, plan.op.baselines[name]) for name in _baselines_for(plan, case)]
    subjects = [s for s in subjects if _runs(plan, s, sets[0], case)]
    if not subjects:
        return
    subjects, wrong = _verify(plan, subjects, sets[-1], case)
    if "forward" in request.directions:
        own_sets = {s.name: sets for s in subjects}
        yield from _time_direction(plan, case, "forward", subjects, own_sets, sets[0], wrong)
    if "backward" in request.directions and plan.op.parts["autograd"].origin != "missing":
        backwards = dict(_backwards(plan, case, subjects, sets[: 4 if request.quick else 8]))
        if backwards:
            prepared = {subject.name: states for subject, states in backwards.items()}
            yield from _time_direction(plan, case, "backward", list(backwards), prepared, sets[0], wrong)


_MAKE_DERIVED: dict[str, Callable[[Op], Subject]] = {"eager": eager_reference, "torch.compile": compiled_reference}


def _that_run(plan: _Plan, arguments: Any) -> list[str]:
    found, asked = [], plan.request.kernels
    for choice in plan.op.contract.signature.call(plan.op.explain, arguments).choices:
        if choice.kernel in plan.op.kernels and (asked is None or choice.kernel in asked):
            if isinstance(choice.outcome, Accepted):
                found.append(choice.kernel)
            else:
                plan.tell(f"{plan.op.contract.qualname} {choice.kernel}: {choice.outcome}")
    return found


def _baselines_for(plan: _Plan, case: Case) -> Iterator[str]:
    for name, baseline in plan.op.baselines.items():
        if not plan.request.wants(name):
            continue
        if (why := baseline.refuses(plan.device, case.dtype)) is None:
            yield name
        else:
            plan.tell(f"{plan.op.contract.qualname} {name}: {why}")


def _runs(plan: _Plan, subject: Subject, arguments: Any, case: Case) -> bool:
    plan.tell(f"{plan.op.contract.qualname} {case}: {subject.name} warm-up · {plan.left}")
    try:
        with subject.prepared():
            subject.run(arguments)
            plan.timer.warm_up(subject, [arguments])
    except Exception as error:  # whatever it raises, the others are timed all the same
        plan.errors.append(
            f"{plan.op.contract.qualname} {subject.name} ({case}) raised {type(error).__name__}: {error}"
        )
        plan.flags.restore()
        return False
    if changes := plan.flags.changes():
        plan.flags.restore()
        plan.wrong(subject.name, case, f"it changes torch's settings for all ({'; '.join(changes)}), so it is left out")
        return False
    return True


def _verify(
    plan: _Plan, subjects: Sequence[Subject], arguments: Any, case: Case
) -> tuple[list[Subject], frozenset[str]]:
    """Outputs of a set that was not the first, against the meaning in eager mode on the same device.

    Returns:
        The subjects to time, and the names of those that are wrong. A wrong kernel is timed all the same, since its
        author may want to know; a wrong baseline is not, since nothing may be compared with it.
    """
    expected = plan.op.contract.truth(arguments)
    wrong = {}
    for subject in subjects:
        if why := wrong_output(plan.op.contract, subject, arguments, expected):
            wrong[subject.name] = why
    for name, why in wrong.items():
        plan.wrong(name, case, why + (", so nothing is compared with it" if name in plan.op.baselines else ""))
    kept = [s for s in subjects if s.name not in wrong or s.name not in plan.op.baselines]
    return kept, frozenset(wrong)


def _backwards(
    plan: _Plan, case: Case, subjects: Sequence[Subject], sets: Sequence[Any]
) -> Iterator[tuple[Subject, list[BackwardState]]]:
    """Each subject's backward pass with its forwards done, checked like an output."""
    expected: Sequence[torch.Tensor] | None = None
    for subject in subjects:
        is_baseline = subject.name in plan.op.baselines
        try:
            made = backward_of(subject, sets)
            if made is None:
                if is_baseline:
                    plan.tell(f"{plan.op.contract.qualname} {subject.name}: its result carries no gradient")
                continue
            if expected is None:
                expected = _gradients(plan.op, sets[-1], made[1][-1].incoming)
            why = wrong_gradients(made[0], made[1][-1], expected)
        except Exception as error:  # whatever it raises, the others are timed all the same
            plan.wrong(subject.name, case, f"the backward raised {type(error).__name__}: {error}")
            continue
        if why is not None:
            plan.wrong(subject.name, case, why + (", so nothing is compared with it" if is_baseline else ""))
        if why is None or not is_baseline:
            yield made


def _gradients(operator: Op, arguments: Any, incoming: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    needs = [derive.differentiable(t) for t in _pytree.tree_leaves(list(arguments)) if isinstance(t, torch.Tensor)]
    return derive.vjp(operator.contract, arguments, incoming, needs)


def _time_direction(
    plan: _Plan,
    case: Case,
    direction: str,
    subjects: Sequence[Subject],
    sets: Mapping[str, Sequence[Any]],
    arguments: Any,
    wrong: frozenset[str],
) -> Iterator[Measurement]:
    where = f"{plan.op.contract.qualname} {case} {direction}"

    def tell(what: str) -> None:
        plan.tell(f"{where}: {what} · {plan.left}")

    def look(how: str) -> dict[str, Samples]:
        with plan.timer.steady():
            found = measure_in_turn(plan.timer, subjects, sets, how, plan.request.rule, plan.watch, tell)
        plan.left.did(len(subjects))
        return found

    for subject in subjects:
        tell(f"{subject.name} warm-up")
        with subject.prepared():
            plan.timer.warm_up(subject, sets[subject.name])
    call = look("call")
    impossible: set[str] = set()
    for cache in plan.request.caches:
        times = call if cache == "warm" and not plan.timer.has_device_time else look(cache)
        for subject in subjects:
            measurement = _measurement(plan, case, direction, cache, subject, times, call, arguments)
            if cache == "warm" and not plan.request.quick:
                measurement = _with_second_opinion(plan, measurement, subject, sets[subject.name])
            if _beyond_its_limit(measurement):
                impossible.add(subject.name)
            yield measurement
    if direction == "forward":
        device = times if plan.timer.has_device_time else None
        _remember_point(plan, subjects, wrong | impossible, call, device, arguments)
    plan.timer.forget()


def _remember_point(
    plan: _Plan,
    subjects: Sequence[Subject],
    unfit: frozenset[str],
    call: Mapping[str, Samples],
    device: Mapping[str, Samples] | None,
    arguments: Any,
) -> None:
    """For the table of which kernel wins where; by the last state of the cache that was timed, which is warm."""
    names = [s.name for s in subjects if s.name in plan.op.kernels and s.name not in unfit]
    rounds = {n: cost_rounds(call[n].rounds, device[n].rounds if device else None) for n in names}
    plan.points.append(Point(count_elements(arguments), dtype_key(arguments), rounds))


def _measurement(
    plan: _Plan,
    case: Case,
    direction: str,
    cache: str,
    subject: Subject,
    times: dict[str, Samples],
    call: dict[str, Samples],
    arguments: Any,
) -> Measurement:
    ours = times[subject.name]
    time = estimate(ours.all)
    moved = derive.least_bytes(plan.op.contract, arguments)
    flops = plan.op.count_flops(arguments)
    if direction == "backward":
        # Read the incoming gradients and the inputs, write the inputs' gradients: about as much as two forwards.
        moved, flops = 2 * moved, 2 * flops
    dtype = str(case.dtype).removeprefix("torch.") if case.dtype else ""
    limit, share = "", None
    if direction == "forward":  # a backward's bytes are an estimate, so a share of a limit would mean nothing
        limit, share = fraction_of_ceiling(
            plan.ceilings, moved=moved, flops=flops, dtype=dtype, cold=cache == "cold", us=time.median
        )
    found = Measurement(
        op=plan.op.contract.qualname,
        kernel=subject.name,
        backend=subject.backend,
        device=plan.device,
        direction=direction,
        case={**{n: list(s) if isinstance(s, tuple) else s for n, s in case.sizes}, "dtype": dtype},
        cache=cache,
        device_us=time if plan.timer.has_device_time else None,
        call_us=estimate(call[subject.name].all) if plan.timer.has_device_time else time,
        bytes=moved,
        flops=flops,
        ceiling=limit,
        ceiling_fraction=share,
        versus={
            name: compare(ours.rounds, times[name].rounds)
            for name in (*DERIVED, *plan.op.baselines)
            if name in times and name != subject.name
        },
        notes=(*plan.watch.notes, *_how_it_was_taken(plan, subject, cache)),
        first_values=_first_values(subject, arguments) if direction == "forward" else (),
        reproduce=_how_to_reproduce(plan, case, subject, direction),
        raw=tuple(ours.all),
    )
    return _judge_ceiling(plan, found)


def _how_it_was_taken(plan: _Plan, subject: Subject, cache: str) -> list[str]:
    why = plan.timer.not_captured(subject) if cache == "warm" else ""
    return [f"calls queued one by one, not a CUDA graph: {why}"] if why else []


def _judge_ceiling(plan: _Plan, found: Measurement) -> Measurement:
    """A time that the machine cannot have reached is an error."""
    if not _beyond_its_limit(found):
        return found
    told = f"{found.ceiling_fraction:.2f} of the {found.ceiling} that this machine has: it did not do the work"
    plan.errors.append(f"{found.op} {found.kernel} ({found.case}, {found.cache}): {told}")
    return dataclasses.replace(found, notes=(*found.notes, told))


def _beyond_its_limit(found: Measurement) -> bool:
    """Whether the share is impossible, and its interval does not reach back to the possible."""
    share = found.ceiling_fraction or 0.0
    return share * found.time_us.median / max(found.time_us.hi, 1e-9) > IMPOSSIBLE


def _with_second_opinion(plan: _Plan, found: Measurement, subject: Subject, sets: Sequence[Any]) -> Measurement:
    with subject.prepared():
        other = plan.timer.second_opinion(subject, sets)
    mine = found.time_us.median
    if other is None or abs(other - mine) <= max(2.0, _TIMERS_AGREE_WITHIN * mine):
        return found
    told = f"timers disagree: {mine:.1f} µs here, {other:.1f} µs by the profiler"
    return dataclasses.replace(found, notes=(*found.notes, told))


def _first_values(subject: Subject, arguments: Any) -> tuple[float, ...]:
    with subject.prepared():
        out = _pytree.tree_leaves(subject.run(arguments))[0]
    return tuple(float(v) for v in out.flatten()[:2].tolist()) if not out.is_complex() else ()


def _how_to_reproduce(plan: _Plan, case: Case, subject: Subject, direction: str) -> str:
    target = name_target(plan.op)
    if target is None:
        return ""
    sizes = " ".join(
        f"--size {name}={'x'.join(map(str, size)) if isinstance(size, tuple) else size}" for name, size in case.sizes
    )
    kernel = f" --kernel {subject.name}" if subject.name in plan.op.kernels else ""
    dtype = f" --dtype {str(case.dtype).removeprefix('torch.')}" if case.dtype else ""
    return f"opwright bench {target}{kernel} --device {plan.device} {sizes}{dtype} --direction {direction}"
