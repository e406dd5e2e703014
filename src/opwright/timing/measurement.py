"""Makes the record of one candidate's samples: roofline fraction, comparisons, notes, the command to repeat it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from opwright import tree
from opwright.contract import derive
from opwright.contract.dtypes import short
from opwright.contract.inputs.case import Case
from opwright.results import Estimate, Measurement
from opwright.runtime.baselines import DERIVED
from opwright.runtime.targets import name_target
from opwright.runtime.tuning.size_tables import device_name
from opwright.timing.analysis.statistics import compare, estimate
from opwright.timing.candidates import Candidate
from opwright.timing.measurement_pass import Samples
from opwright.timing.request import Session
from opwright.timing.roofline import IMPOSSIBLE, fraction_of_roofline

__all__ = ["beyond_its_limit", "make_measurement", "recorded", "with_profiler_note"]

# Timers disagree if they differ by more than this fraction (and 2 µs).
_TIMER_TOLERANCE = 0.25


def make_measurement(
    session: Session,
    case: Case,
    direction: str,
    cache: str,
    candidate: Candidate,
    times: dict[str, Samples],
    call: dict[str, Samples],
    arguments: Any,
) -> Measurement:
    """The record of one candidate in one state of the cache.

    Args:
        times, call: the samples of all candidates: in that state of the cache, and host times.
        arguments: a set of inputs, for bytes and FLOPs.
    """
    ours = times[candidate.name]
    time = estimate(ours.all)
    moved = derive.least_bytes(session.op.contract, arguments)
    flops = session.op.contract.signature.call(session.op.flops, arguments)
    if direction == "backward":
        # Read the incoming gradients and the inputs, write the inputs' gradients: about as much as two forwards.
        moved, flops = 2 * moved, 2 * flops
    limit, fraction = "", None
    if direction == "forward":  # a backward's bytes are an estimate, so a fraction of a limit would not be meaningful
        work = {"moved": moved, "flops": flops, "dtype": recorded(case)["dtype"], "cold": cache == "cold"}
        limit, fraction = _fraction_of_limits(session, time, work)
    found = Measurement(
        op=session.op.contract.qualname,
        kernel=candidate.name,
        backend=candidate.backend,
        device=session.device,
        direction=direction,
        case=recorded(case),
        cache=cache,
        gpu_us=time if session.timer.has_gpu_time else None,
        host_us=estimate(call[candidate.name].all) if session.timer.has_gpu_time else time,
        bytes=moved,
        flops=flops,
        bound=limit,
        roofline_fraction=fraction,
        comparisons={
            name: compare(ours.rounds, times[name].rounds)
            for name in (*DERIVED, *session.op.baselines)
            if name in times and name != candidate.name
        },
        notes=(*session.watch.notes, *_capture_notes(session, candidate, cache)),
        first_values=_first_values(candidate, arguments) if direction == "forward" else (),
        reproduce=_how_to_reproduce(session, case, candidate, direction),
        raw=tuple(ours.all),
        device_name=device_name(torch.device(session.device)),
    )
    return _check_roofline_fraction(session, found)


def _fraction_of_limits(session: Session, time: Estimate, work: dict[str, Any]) -> tuple[str, float | None]:
    """The nearest limit, and the fraction of it. If that is impossible, the limits are measured again first: they are
    too low if the machine was busy then."""
    limit, fraction = fraction_of_roofline(session.limits, us=time.median, **work)
    if _is_impossible(fraction, time) and session.roofline is not None and session.roofline.measure_again():
        limit, fraction = fraction_of_roofline(session.limits, us=time.median, **work)
    return limit, fraction


def _capture_notes(session: Session, candidate: Candidate, cache: str) -> list[str]:
    why = session.timer.not_captured(candidate) if cache == "warm" else ""
    return [f"calls queued one by one, not a CUDA graph: {why}"] if why else []


def _check_roofline_fraction(session: Session, found: Measurement) -> Measurement:
    """Add an error if the machine cannot have reached this time."""
    if not beyond_its_limit(found):
        return found
    error = f"{found.roofline_fraction:.2f} of this machine's {found.bound}: it did not do the work"
    session.errors.append(f"{found.op} {found.kernel} ({found.case}, {found.cache}): {error}")
    return dataclasses.replace(found, notes=(*found.notes, error))


def beyond_its_limit(found: Measurement) -> bool:
    """Whether the fraction is impossible for the whole interval of the time."""
    return _is_impossible(found.roofline_fraction, found.time_us)


def _is_impossible(fraction: float | None, time: Estimate) -> bool:
    return (fraction or 0.0) * time.median / max(time.hi, 1e-9) > IMPOSSIBLE


def with_profiler_note(session: Session, found: Measurement, candidate: Candidate, sets: Sequence[Any]) -> Measurement:
    """Add a note if the profiler measured a different time."""
    with candidate.prepared():
        other = session.timer.profiler_time(candidate, sets)
    measured = found.time_us.median
    if other is None or abs(other - measured) <= max(2.0, _TIMER_TOLERANCE * measured):
        return found
    note = f"timers disagree: {measured:.1f} µs here, {other:.1f} µs by the profiler"
    return dataclasses.replace(found, notes=(*found.notes, note))


def _first_values(candidate: Candidate, arguments: Any) -> tuple[float, ...]:
    """Of the first output; of none, if the candidate writes its arguments and returns nothing."""
    with candidate.prepared():
        out = tree.tensors(candidate.run(arguments))
    return tuple(float(v) for v in out[0].flatten()[:2].tolist()) if out and not out[0].is_complex() else ()


def recorded(case: Case) -> dict[str, Any]:
    """A case as records have it: dims by name, and ``dtype``."""
    sizes = {name: list(size) if isinstance(size, tuple) else size for name, size in case.sizes}
    return {**sizes, "dtype": short(case.dtype) if case.dtype else ""}


def _how_to_reproduce(session: Session, case: Case, candidate: Candidate, direction: str) -> str:
    target = name_target(session.op)
    if target is None:
        return ""
    sizes = "".join(
        f" --size {name}={'x'.join(map(str, size)) if isinstance(size, tuple) else size}" for name, size in case.sizes
    )
    if case.sample is not None:
        sizes = ""  # without sizes, the samples are timed
    kernel = f" --kernel {candidate.name}" if candidate.name in session.op.kernels else ""
    dtype = f" --dtype {short(case.dtype)}" if case.dtype else ""
    return f"opwright bench {target}{kernel} --device {session.device}{sizes}{dtype} --direction {direction}"
