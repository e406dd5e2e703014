"""Times one case: prepares and verifies its candidates, then measures them in turn, direction by direction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from opwright.contract import derive
from opwright.contract.inputs.case import Case
from opwright.results import Accepted, Measurement
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op
from opwright.runtime.tuning.size_tables import count_elements, dtype_key
from opwright.timing.analysis.crossover import Point, cost_rounds
from opwright.timing.candidates import (
    BackwardState,
    Candidate,
    backward_of,
    baseline_candidate,
    compiled_reference,
    input_sets,
    kernel_candidate,
    plain_reference,
)
from opwright.timing.measurement import beyond_its_limit, make_measurement, with_profiler_note
from opwright.timing.measurement_pass import Samples, measure_in_turn
from opwright.timing.request import Session
from opwright.timing.verify import wrong_gradients, wrong_output

__all__ = ["time_case"]


def time_case(session: Session, case: Case) -> Iterator[Measurement]:
    """Measure one case. Yields each measurement when it is done."""
    torch.compiler.reset()
    request = session.request
    sets = input_sets(session.op, case, session.device, session.timer.cache_bytes, session.timer.most_bytes)
    candidates = [kernel_candidate(session.op, name) for name in _runnable_kernels(session, sets[0])]
    candidates += [make(session.op) for name, make in _MAKE_DERIVED.items() if request.wants(name)]
    candidates += [baseline_candidate(session.op, session.op.baselines[name]) for name in _baselines_for(session, case)]
    candidates = [s for s in candidates if _runs(session, s, sets[0], case)]
    if not candidates:
        return
    candidates, wrong = _verify(session, candidates, sets[-1], case)
    if "forward" in request.directions:
        own_sets = {s.name: sets for s in candidates}
        yield from _time_direction(session, case, "forward", candidates, own_sets, sets[0], wrong)
    has_backward = session.op.parts["autograd"].origin != "missing" and not session.op.contract.signature.mutated
    if "backward" in request.directions and has_backward:
        backwards = dict(_backwards(session, case, candidates, sets[: 4 if request.quick else 8]))
        if backwards:
            prepared = {candidate.name: states for candidate, states in backwards.items()}
            yield from _time_direction(session, case, "backward", list(backwards), prepared, sets[0], wrong)


_MAKE_DERIVED: dict[str, Callable[[Op], Candidate]] = {REFERENCE: plain_reference, "torch.compile": compiled_reference}


def _runnable_kernels(session: Session, arguments: Any) -> list[str]:
    found, selected = [], session.request.kernels
    for choice in session.op.contract.signature.call(session.op.explain, arguments).choices:
        if choice.kernel in session.op.kernels and (selected is None or choice.kernel in selected):
            if isinstance(choice.outcome, Accepted):
                found.append(choice.kernel)
            else:
                session.log(f"{session.op.contract.qualname} {choice.kernel}: {choice.outcome}")
    return found


def _baselines_for(session: Session, case: Case) -> Iterator[str]:
    for name, baseline in session.op.baselines.items():
        if not session.request.wants(name):
            continue
        if (why := baseline.refuses(session.device, case.dtype)) is None:
            yield name
        else:
            session.log(f"{session.op.contract.qualname} {name}: {why}")


def _runs(session: Session, candidate: Candidate, arguments: Any, case: Case) -> bool:
    session.log(f"{session.op.contract.qualname} {case}: {candidate.name} warm-up · {session.left}")
    try:
        with candidate.prepared():
            candidate.run(arguments)
            session.timer.warm_up(candidate, [arguments])
    except Exception as error:  # after any exception, the other candidates are still timed
        session.errors.append(
            f"{session.op.contract.qualname} {candidate.name} ({case}) raised {type(error).__name__}: {error}"
        )
        session.flags.restore()
        return False
    if changes := session.flags.changes():
        session.flags.restore()
        session.wrong(
            candidate.name, case, f"it changes torch's global settings ({'; '.join(changes)}), so it is left out"
        )
        return False
    return True


def _verify(
    session: Session, candidates: Sequence[Candidate], arguments: Any, case: Case
) -> tuple[list[Candidate], frozenset[str]]:
    """Compare outputs of a set other than the first with the eager reference on the same device.

    Returns:
        The candidates to time, and the names of those that are wrong. A wrong kernel is still timed, for the user's
        information; a wrong baseline is not, because nothing may be compared with it.
    """
    signature, results = session.op.contract.signature, session.op.contract.reference(arguments)
    expected = [*results[: signature.visible], *results[signature.output_count(results) :]]
    wrong = {}
    for candidate in candidates:
        if why := wrong_output(session.op.contract, candidate, arguments, expected):
            wrong[candidate.name] = why
    for name, why in wrong.items():
        session.wrong(name, case, why + (", so nothing is compared with it" if name in session.op.baselines else ""))
    kept = [s for s in candidates if s.name not in wrong or s.name not in session.op.baselines]
    return kept, frozenset(wrong)


def _backwards(
    session: Session, case: Case, candidates: Sequence[Candidate], sets: Sequence[Any]
) -> Iterator[tuple[Candidate, list[BackwardState]]]:
    """Each candidate's backward pass after its forwards, checked like an output."""
    expected: Sequence[torch.Tensor] | None = None
    for candidate in candidates:
        is_baseline = candidate.name in session.op.baselines
        try:
            made = backward_of(session.op.contract, candidate, sets)
            if made is None:
                if is_baseline:
                    session.log(f"{session.op.contract.qualname} {candidate.name}: its result carries no gradient")
                continue
            if expected is None:
                expected = _gradients(session.op, sets[-1], made[1][-1].incoming)
            why = wrong_gradients(made[0], made[1][-1], expected)
        except Exception as error:  # after any exception, the other candidates are still timed
            session.wrong(candidate.name, case, f"the backward raised {type(error).__name__}: {error}")
            continue
        if why is not None:
            session.wrong(candidate.name, case, why + (", so nothing is compared with it" if is_baseline else ""))
        if why is None or not is_baseline:
            yield made


def _gradients(operator: Op, arguments: Any, incoming: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    needs = derive.differentiable_arguments(operator.contract, arguments)
    hidden = len(operator.contract.signature.returns) - operator.contract.signature.visible
    return derive.vjp(operator.contract, arguments, [*incoming, *[None] * hidden], needs)


def _time_direction(
    session: Session,
    case: Case,
    direction: str,
    candidates: Sequence[Candidate],
    sets: Mapping[str, Sequence[Any]],
    arguments: Any,
    wrong: frozenset[str],
) -> Iterator[Measurement]:
    where = f"{session.op.contract.qualname} {case} {direction}"

    def log(what: str) -> None:
        session.log(f"{where}: {what} · {session.left}")

    def measure(how: str) -> dict[str, Samples]:
        with session.timer.steady():
            found = measure_in_turn(session.timer, candidates, sets, how, session.request.rule, session.watch, log)
        session.left.add_done(len(candidates))
        return found

    for candidate in candidates:
        log(f"{candidate.name} warm-up")
        with candidate.prepared():
            session.timer.warm_up(candidate, sets[candidate.name])
    call = measure("call")
    impossible: set[str] = set()
    for cache in session.request.caches:
        times = call if cache == "warm" and not session.timer.has_gpu_time else measure(cache)
        for candidate in candidates:
            measurement = make_measurement(session, case, direction, cache, candidate, times, call, arguments)
            if cache == "warm" and not session.request.quick:
                measurement = with_profiler_note(session, measurement, candidate, sets[candidate.name])
            if beyond_its_limit(measurement):
                impossible.add(candidate.name)
            yield measurement
    if direction == "forward":
        device = times if session.timer.has_gpu_time else None
        _store_point(session, candidates, wrong | impossible, call, device, arguments)
    session.timer.forget()


def _store_point(
    session: Session,
    candidates: Sequence[Candidate],
    excluded: frozenset[str],
    call: Mapping[str, Samples],
    device: Mapping[str, Samples] | None,
    arguments: Any,
) -> None:
    """Store the times for the table of the fastest kernels by size; from the last state of the cache, which is warm."""
    names = [s.name for s in candidates if s.name in session.op.kernels and s.name not in excluded]
    rounds = {n: cost_rounds(call[n].rounds, device[n].rounds if device else None) for n in names}
    session.points.append(Point(count_elements(arguments), dtype_key(arguments), rounds))
