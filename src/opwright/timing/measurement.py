"""One candidate's samples as a record: rates against the machine's limits, verdicts, notes, how to repeat it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from opwright import tree
from opwright.contract import derive
from opwright.contract.cases import Case
from opwright.contract.dtypes import short
from opwright.results import Measurement
from opwright.runtime.baselines import DERIVED
from opwright.runtime.targets import name_target
from opwright.timing.analysis.statistics import compare, estimate
from opwright.timing.candidates import Candidate
from opwright.timing.measurement_pass import Samples
from opwright.timing.request import Session
from opwright.timing.roofline import IMPOSSIBLE, fraction_of_roofline

__all__ = ["beyond_its_limit", "make_measurement", "with_second_opinion"]

# Timers that differ by more than this share (and 2 µs) contradict each other.
_TIMERS_AGREE_WITHIN = 0.25


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
        times, call: the samples of all candidates: in that state, and of whole calls.
        arguments: a set of inputs, for bytes and FLOPs.
    """
    ours = times[candidate.name]
    time = estimate(ours.all)
    moved = derive.least_bytes(session.op.contract, arguments)
    flops = session.op.contract.signature.call(session.op.flops, arguments)
    if direction == "backward":
        # Read the incoming gradients and the inputs, write the inputs' gradients: about as much as two forwards.
        moved, flops = 2 * moved, 2 * flops
    dtype = short(case.dtype) if case.dtype else ""
    limit, share = "", None
    if direction == "forward":  # a backward's bytes are an estimate, so a share of a limit would mean nothing
        limit, share = fraction_of_roofline(
            session.roofline, moved=moved, flops=flops, dtype=dtype, cold=cache == "cold", us=time.median
        )
    found = Measurement(
        op=session.op.contract.qualname,
        kernel=candidate.name,
        backend=candidate.backend,
        device=session.device,
        direction=direction,
        case={**{n: list(s) if isinstance(s, tuple) else s for n, s in case.sizes}, "dtype": dtype},
        cache=cache,
        gpu_us=time if session.timer.has_gpu_time else None,
        host_us=estimate(call[candidate.name].all) if session.timer.has_gpu_time else time,
        bytes=moved,
        flops=flops,
        bound=limit,
        roofline_fraction=share,
        comparisons={
            name: compare(ours.rounds, times[name].rounds)
            for name in (*DERIVED, *session.op.baselines)
            if name in times and name != candidate.name
        },
        notes=(*session.watch.notes, *_how_it_was_taken(session, candidate, cache)),
        first_values=_first_values(candidate, arguments) if direction == "forward" else (),
        reproduce=_how_to_reproduce(session, case, candidate, direction),
        raw=tuple(ours.all),
    )
    return _judge_roofline_fraction(session, found)


def _how_it_was_taken(session: Session, candidate: Candidate, cache: str) -> list[str]:
    why = session.timer.not_captured(candidate) if cache == "warm" else ""
    return [f"calls queued one by one, not a CUDA graph: {why}"] if why else []


def _judge_roofline_fraction(session: Session, found: Measurement) -> Measurement:
    """A time that the machine cannot have reached is an error."""
    if not beyond_its_limit(found):
        return found
    told = f"{found.roofline_fraction:.2f} of the {found.bound} that this machine has: it did not do the work"
    session.errors.append(f"{found.op} {found.kernel} ({found.case}, {found.cache}): {told}")
    return dataclasses.replace(found, notes=(*found.notes, told))


def beyond_its_limit(found: Measurement) -> bool:
    """Whether the share is impossible, and its interval does not reach back to the possible."""
    share = found.roofline_fraction or 0.0
    return share * found.time_us.median / max(found.time_us.hi, 1e-9) > IMPOSSIBLE


def with_second_opinion(session: Session, found: Measurement, candidate: Candidate, sets: Sequence[Any]) -> Measurement:
    """With a note, if the profiler saw another time."""
    with candidate.prepared():
        other = session.timer.second_opinion(candidate, sets)
    mine = found.time_us.median
    if other is None or abs(other - mine) <= max(2.0, _TIMERS_AGREE_WITHIN * mine):
        return found
    told = f"timers disagree: {mine:.1f} µs here, {other:.1f} µs by the profiler"
    return dataclasses.replace(found, notes=(*found.notes, told))


def _first_values(candidate: Candidate, arguments: Any) -> tuple[float, ...]:
    with candidate.prepared():
        out = tree.leaves(candidate.run(arguments))[0]
    return tuple(float(v) for v in out.flatten()[:2].tolist()) if not out.is_complex() else ()


def _how_to_reproduce(session: Session, case: Case, candidate: Candidate, direction: str) -> str:
    target = name_target(session.op)
    if target is None:
        return ""
    sizes = " ".join(
        f"--size {name}={'x'.join(map(str, size)) if isinstance(size, tuple) else size}" for name, size in case.sizes
    )
    kernel = f" --kernel {candidate.name}" if candidate.name in session.op.kernels else ""
    dtype = f" --dtype {short(case.dtype)}" if case.dtype else ""
    return f"opwright bench {target}{kernel} --device {session.device} {sizes}{dtype} --direction {direction}"
