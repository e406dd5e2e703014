"""Timing operators: which kernels on which cases, beside which baselines, into one report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree

from opwright.contract import derive
from opwright.contract.cases import Case
from opwright.errors import CheckError
from opwright.machine import this_machine
from opwright.results import Accepted, BenchReport, Ceiling, Measurement
from opwright.runtime.op import Op
from opwright.runtime.targets import load_target, name_target
from opwright.timing.ceilings import IMPOSSIBLE, fraction_of_ceiling, measure_ceilings
from opwright.timing.clocks import ClockWatch
from opwright.timing.measure import Samples, measure_in_turn
from opwright.timing.sizes import bench_cases
from opwright.timing.statistics import StopRule, compare, estimate
from opwright.timing.subjects import (
    Subject,
    backward_of,
    compiled_reference,
    eager_reference,
    input_sets,
    kernel_subject,
)
from opwright.timing.timers import Timer, make_timer

__all__ = ["bench"]

BASELINES = ("eager", "torch.compile")
# A kernel's timed output may differ from the meaning's by this much (norm of the difference over the norm).
_CLOSE = {torch.float16: 2e-2, torch.bfloat16: 5e-2, torch.float32: 1e-3, torch.float64: 1e-9}
# Timers that differ by more than this share (and 2 µs) contradict each other.
_TIMERS_AGREE_WITHIN = 0.25


@dataclass
class _Plan:
    """What one operator's run needs to know everywhere."""

    op: Op
    device: str
    timer: Timer
    rule: StopRule
    watch: ClockWatch
    ceilings: tuple[Ceiling, ...]
    tell: Callable[[str], None]
    quick: bool
    errors: list[str] = field(default_factory=list)


def bench(
    *targets: Op | str,
    kernels: Sequence[str] | None = None,
    device: str | None = None,
    sizes: Mapping[str, Sequence[int]] | None = None,
    dtypes: Sequence[str] = (),
    directions: Sequence[str] = ("forward", "backward"),
    baselines: Sequence[str] = BASELINES,
    quick: bool = False,
    iters: int | None = None,
    progress: Callable[[str], None] | None = None,
    on_measurement: Callable[[Measurement], None] | None = None,
) -> BenchReport:
    """Time every kernel of some operators beside the meaning, eager and compiled.

    Args:
        targets: operators, or what names them: a file, ``module``, ``module:op``.
        kernels: only these, by name.
        device: ``cpu`` or ``cuda``; by default the GPU where there is one.
        sizes: sizes by dim; every combination is timed. Without it, the operator's own or a few derived ones.
        dtypes: names such as ``float16``; by default the contract's first.
        directions: ``forward`` and ``backward`` are timed apart.
        baselines: of ``eager`` and ``torch.compile``.
        quick: fewer sizes and samples.
        iters: exactly so many samples of each, instead of the stop rule.
        progress, on_measurement: told of what goes on; what was measured when a Ctrl-C comes is kept.

    Returns:
        A report with ``measurements`` and ``errors`` (a wrong timed output, a time that the machine cannot have
        reached). Times are microseconds.

    Raises:
        TargetError, CheckError: something that was asked for does not exist.
    """
    machine = this_machine()
    where = device or ("cuda" if machine.has_gpu else "cpu")
    if where == "cuda" and not machine.has_gpu:
        raise CheckError("there is no CUDA GPU to time on", fix="use --device cpu")
    tell = progress or (lambda what: None)
    operators = [o for t in targets for o in ([t] if isinstance(t, Op) else load_target(t))]
    _refuse_unknown(operators, kernels, baselines, directions)
    timer = make_timer(where)
    ceilings = measure_ceilings(where, timer, machine, tell)
    watch = ClockWatch()
    if where == "cuda":
        watch.start(torch.cuda.current_device())
    found: list[Measurement] = []
    errors: list[str] = []
    interrupted = False
    for operator in operators:
        plan = _Plan(operator, where, timer, _rule(quick, iters), watch, ceilings, tell, quick, errors)
        declared = operator.declared_sizes
        chosen = bench_cases(operator.contract, where, sizes=sizes or {}, dtypes=dtypes, declared=declared, quick=quick)
        try:
            for case in chosen:
                for measurement in _survive(plan, case, _time_case(plan, case, kernels, baselines, directions)):
                    found.append(measurement)
                    if on_measurement is not None:
                        on_measurement(measurement)
        except KeyboardInterrupt:
            interrupted = True
            break
    if interrupted:
        errors.append("interrupted: what was measured until then is here")
    return BenchReport({**machine.to_json(), **watch.state()}, tuple(found), ceilings, tuple(errors))


def _survive(plan: _Plan, case: Case, measurements: Iterator[Measurement]) -> Iterator[Measurement]:
    """One case that fails (the meaning itself does not fit into memory, say) does not end the others."""
    try:
        yield from measurements
    except Exception as error:  # anything that an operator raises
        plan.errors.append(f"{plan.op.contract.qualname} ({case}) raised {type(error).__name__}: {error}")


def _rule(quick: bool, iters: int | None) -> StopRule:
    if iters is not None:
        return StopRule(min_samples=iters, min_seconds=0, max_samples=iters)
    return StopRule(min_seconds=0.05, max_seconds=0.4, spread=0.02) if quick else StopRule()


def _refuse_unknown(
    operators: Sequence[Op], kernels: Sequence[str] | None, baselines: Sequence[str], directions: Sequence[str]
) -> None:
    known = sorted({k for o in operators for k in o.kernels})
    for what, asked, there in (
        ("kernel", kernels or (), known),
        ("baseline", baselines, list(BASELINES)),
        ("direction", directions, ["forward", "backward"]),
    ):
        for name in asked:
            if name not in there:
                raise CheckError(f"there is no {what} {name!r}", fix=f"there are {', '.join(there)}")


def _time_case(
    plan: _Plan, case: Case, kernels: Sequence[str] | None, baselines: Sequence[str], directions: Sequence[str]
) -> Iterator[Measurement]:
    torch.compiler.reset()
    sets = input_sets(plan.op, case, plan.device, plan.timer.cache_bytes, plan.timer.most_bytes)
    subjects = [kernel_subject(plan.op, name) for name in _that_run(plan, case, kernels, sets[0])]
    subjects += [make(plan.op) for name, make in _MAKE_BASELINE.items() if name in baselines]
    subjects = [s for s in subjects if _runs(plan, s, sets[0], case)]
    if not subjects:
        return
    _verify(plan, subjects, sets[-1], case)
    if "forward" in directions:
        yield from _time_direction(plan, case, "forward", subjects, {s.name: sets for s in subjects}, sets[0])
    if "backward" in directions and plan.op.parts["autograd"].origin != "missing":
        pairs = [(s, backward_of(s, sets[: 4 if plan.quick else 8])) for s in subjects]
        backwards = [made for _, made in pairs if made is not None]
        if backwards:
            own_sets = {subject.name: prepared for subject, prepared in backwards}
            yield from _time_direction(plan, case, "backward", [s for s, _ in backwards], own_sets, sets[0])


_MAKE_BASELINE: dict[str, Callable[[Op], Subject]] = {"eager": eager_reference, "torch.compile": compiled_reference}


def _that_run(plan: _Plan, case: Case, kernels: Sequence[str] | None, arguments: Any) -> list[str]:
    found = []
    for choice in plan.op.contract.signature.call(plan.op.explain, arguments).choices:
        if choice.kernel in plan.op.kernels and (kernels is None or choice.kernel in kernels):
            if isinstance(choice.outcome, Accepted):
                found.append(choice.kernel)
            else:
                plan.tell(f"{plan.op.contract.qualname} {choice.kernel}: {choice.outcome}")
    return found


def _runs(plan: _Plan, subject: Subject, arguments: Any, case: Case) -> bool:
    plan.tell(f"{plan.op.contract.qualname} {case}: {subject.name} warm-up")
    try:
        with subject.prepared():
            subject.run(arguments)
            plan.timer.warm_up(subject, [arguments])
    except Exception as error:  # whatever it raises, the others are timed all the same
        plan.errors.append(
            f"{plan.op.contract.qualname} {subject.name} ({case}) raised {type(error).__name__}: {error}"
        )
        return False
    return True


def _verify(plan: _Plan, subjects: Sequence[Subject], arguments: Any, case: Case) -> None:
    """Outputs of a set that was not the first, against the meaning in eager mode on the same device."""
    expected = plan.op.contract.truth(arguments)
    for subject in subjects:
        with subject.prepared():
            got = plan.op.contract.unpack(subject.run(arguments))
        for a, b in zip(got, expected, strict=True):
            if not _close(a, b):
                plan.errors.append(f"{plan.op.contract.qualname} {subject.name} ({case}): its timed output is wrong")


def _close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    if got.shape != expected.shape:
        return False
    if not expected.is_floating_point():
        # Near-ties may fall either way; `opwright check` judges them one by one.
        return expected.numel() == 0 or float((got != expected).float().mean()) < 1e-3
    difference = torch.linalg.vector_norm((got - expected).float())
    return bool(difference <= _CLOSE.get(expected.dtype, 1e-3) * torch.linalg.vector_norm(expected.float()) + 1e-12)


def _time_direction(
    plan: _Plan,
    case: Case,
    direction: str,
    subjects: Sequence[Subject],
    sets: Mapping[str, Sequence[Any]],
    arguments: Any,
) -> Iterator[Measurement]:
    where = f"{plan.op.contract.qualname} {case} {direction}"

    def tell(what: str) -> None:
        plan.tell(f"{where}: {what}")

    for subject in subjects:
        tell(f"{subject.name} warm-up")
        with subject.prepared():
            plan.timer.warm_up(subject, sets[subject.name])
    call = measure_in_turn(plan.timer, subjects, sets, "call", plan.rule, plan.watch, tell)
    for cache in ("cold", "warm"):
        same = cache == "warm" and not plan.timer.has_device_time
        times = call if same else measure_in_turn(plan.timer, subjects, sets, cache, plan.rule, plan.watch, tell)
        for subject in subjects:
            measurement = _measurement(plan, case, direction, cache, subject, times, call, arguments)
            if cache == "warm" and not plan.quick:
                measurement = _with_second_opinion(plan, measurement, subject, sets[subject.name])
            yield measurement
    plan.timer.forget()


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
            for name in BASELINES
            if name in times and name != subject.name
        },
        notes=tuple(plan.watch.notes),
        first_values=_first_values(subject, arguments) if direction == "forward" else (),
        reproduce=_how_to_reproduce(plan, case, subject, direction),
        raw=tuple(ours.all),
    )
    return _judge_ceiling(plan, found)


def _judge_ceiling(plan: _Plan, found: Measurement) -> Measurement:
    """A time that the machine cannot have reached is an error, unless its interval reaches back to the possible."""
    if found.ceiling_fraction is None:
        return found
    surely = found.ceiling_fraction * found.time_us.median / max(found.time_us.hi, 1e-9)
    if surely <= IMPOSSIBLE:
        return found
    told = f"{found.ceiling_fraction:.2f} of the {found.ceiling} that this machine has: it did not do the work"
    plan.errors.append(f"{found.op} {found.kernel} ({found.case}, {found.cache}): {told}")
    return dataclasses.replace(found, notes=(*found.notes, told))


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
