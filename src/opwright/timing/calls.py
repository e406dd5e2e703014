"""What a call costs the host: each way to call an operator, beside ``torch.add``, and the steps of a guarded call."""

from __future__ import annotations

import functools
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.contract import derive
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.case import Case, Size
from opwright.errors import CheckError
from opwright.machine import this_machine
from opwright.results import Accepted, CallsReport, CallTime, OperatorCalls
from opwright.runtime.extensions import load_extensions
from opwright.runtime.op import Op
from opwright.timing.analysis.statistics import estimate
from opwright.timing.measurement import recorded
from opwright.timing.sizes import bench_cases

__all__ = ["time_calls"]

Call = Callable[[], Any]
# One sample is so many seconds of calls of one way; ways take turns.
_SAMPLE_S = 0.002
_SAMPLES, _SAMPLES_QUICK = 40, 10
# Calls between two waits for the GPU: fewer than CUDA's queue of launches takes, which is 1,024.
_MOST_QUEUED = 200
_PLAIN, _TRACKED, _BACKWARD = "torch.add", "torch.add, recorded", "torch.add, forward and backward"


def time_calls(
    operators: Sequence[Op],
    kernels: Sequence[str] | None,
    device: str | None,
    sizes: Mapping[str, Sequence[Size]],
    dtypes: Sequence[str],
    *,
    quick: bool,
    progress: Callable[[str], None],
) -> CallsReport:
    """Time the host's part of a call in each way: the operator, torch.ops, each kernel, with a gradient, compiled.

    Args:
        sizes, dtypes: as for ``ow.bench``; by default the smallest size, so that the host's part is what is measured.
        quick: fewer samples, and no torch.compile.

    Returns:
        A report with microseconds of host time, and ratios to ``torch.add`` of 1,024 floats, called in the same way.
    """
    machine = this_machine()
    where = device or ("cuda" if machine.has_gpu else "cpu")
    if where == "cuda" and not machine.has_gpu:
        raise CheckError("the device must be one of this machine, got cuda without a CUDA GPU", fix="use --device cpu")
    load_extensions(build=True)
    known = {name for o in operators for name in o.kernels}
    for name in kernels or ():
        if name not in known:
            raise CheckError(
                f"the kernel must be one of {', '.join(sorted(known)) or 'none'}, got {name!r}", fix="name one of them"
            )
    errors: list[str] = []
    found = []
    for operator in operators:
        cases = bench_cases(operator.contract, where, sizes=sizes, dtypes=dtypes, quick=False)
        for case in cases if sizes else cases[:1]:
            progress(f"{operator.contract.qualname} {case}")
            try:
                found.append(_time_operator(operator, case, where, kernels, errors, quick=quick))
            except Exception as error:  # anything that an operator raises
                errors.append(f"{operator.contract.qualname} ({case}) raised {type(error).__name__}: {error}")
    return CallsReport(machine.to_json(), tuple(found), tuple(errors))


def _time_operator(
    operator: Op, case: Case, device: str, kernels: Sequence[str] | None, errors: list[str], *, quick: bool
) -> OperatorCalls:
    arguments = arguments_of(operator.contract, case, device)
    explained = operator.contract.signature.call(operator.explain, arguments)
    runnable = [
        c.kernel
        for c in explained.choices
        if c.kernel in operator.kernels and isinstance(c.outcome, Accepted) and (kernels is None or c.kernel in kernels)
    ]
    ways = dict(_ways(operator, arguments, runnable))
    if not quick:
        ways["inside torch.compile"] = (_compiled(operator, arguments), _PLAIN)
    count = _SAMPLES_QUICK if quick else _SAMPLES
    found: dict[str, list[CallTime]] = {"yardsticks": [], "ways": [], "steps": []}
    # One kind of call after the other: the guards of calls that autograd records would be asked in plain ones, too.
    for yardstick, reference in _of_torch_add(device).items():
        calls = {name: call for name, (call, like) in ways.items() if like == yardstick}
        calls = {name: call for name, call in calls.items() if _works(operator, case, name, call, errors)}
        if not calls:
            continue
        steps = _steps(operator, arguments) if "operator" in calls else {}
        timed = _in_turn({yardstick: reference, **calls, **steps}, count, device, yardstick)
        found["yardsticks"] += timed[:1]
        found["ways"] += timed[1 : len(calls) + 1]
        found["steps"] += timed[len(calls) + 1 :]
    contract, parts = operator.contract, {name: tuple(times) for name, times in found.items()}
    return OperatorCalls(contract.qualname, explained.chosen.kernel, device, recorded(case), **parts)


def _of_torch_add(device: str) -> dict[str, Call]:
    x, y, tracked = (torch.ones(1024, device=device) for _ in range(3))
    tracked.requires_grad_()
    return {
        _PLAIN: functools.partial(torch.add, x, y),
        _TRACKED: functools.partial(torch.add, tracked, y),
        _BACKWARD: _forward_and_backward(functools.partial(torch.add, tracked, y), [tracked]),
    }


def _ways(operator: Op, arguments: Sequence[Any], kernels: Sequence[str]) -> Iterator[tuple[str, tuple[Call, str]]]:
    """Each way to call the operator, and which call of ``torch.add`` is like it."""
    contract = operator.contract
    args, named = contract.signature.split(arguments)

    def call(function: Callable[..., Any]) -> Call:
        return functools.partial(function, *args, **named)

    yield "operator", (call(operator), _PLAIN)
    yield "torch.ops", (call(operator.overload.overloadpacket), _PLAIN)
    for name in kernels:
        yield f"kernel {name}", (call(operator.kernels[name]), _PLAIN)
    if contract.signature.language == "torch":
        yield "reference", (call(contract.function), _PLAIN)
    if contract.signature.mutated or operator.parts["autograd"].origin == "missing":
        return
    inputs = derive.leaves(contract, arguments)
    tracked = [t for t in tree.tensors(inputs) if t.requires_grad]
    if tracked:
        args, named = contract.signature.split(inputs)
        yield "operator, recorded", (call(operator), _TRACKED)
        yield "operator, forward and backward", (_forward_and_backward(call(operator), tracked), _BACKWARD)
        if contract.signature.language == "torch":
            yield "reference, forward and backward", (
                _forward_and_backward(call(contract.function), tracked), _BACKWARD,
            )  # fmt: skip


def _forward_and_backward(forward: Call, tracked: Sequence[torch.Tensor]) -> Call:
    def outputs() -> list[torch.Tensor]:
        return [t for t in tree.leaves(forward()) if isinstance(t, torch.Tensor) and t.requires_grad]

    incoming: list[torch.Tensor] = []

    def step() -> None:
        found = outputs()
        if not incoming:
            incoming.extend(map(torch.ones_like, found))
        torch.autograd.grad(found, tracked, incoming, allow_unused=True)

    return step


def _compiled(operator: Op, arguments: Sequence[Any]) -> Call:
    args, named = operator.contract.signature.split(arguments)

    def function(*args: Any, **named: Any) -> Any:
        return operator(*args, **named)

    return functools.partial(torch.compile(function, dynamic=False), *args, **named)


def _works(operator: Op, case: Case, way: str, call: Call, errors: list[str]) -> bool:
    try:
        call()
        call()
    except Exception as error:  # the other ways are still timed
        errors.append(f"{operator.contract.qualname}, {way} ({case}) raised {type(error).__name__}: {error}")
        return False
    return True


def _steps(operator: Op, arguments: Sequence[Any]) -> dict[str, Call]:
    """The parts of a guarded call; none if such a call leaves no guard."""
    guarded = operator._guarded_call(*arguments)
    if guarded is None:
        return {}
    return {
        "does the guard hold": functools.partial(operator._guarded_call, *arguments),
        "the kernel": functools.partial(guarded[1], *arguments),
    }


def _in_turn(calls: Mapping[str, Call], samples: int, device: str, yardstick: str) -> list[CallTime]:
    """The host time of each call, by samples that were taken in turn: the machine's other work cancels in ratios of
    samples next to each other."""
    wait = torch.cuda.synchronize if device == "cuda" else _nothing
    repeats = {name: _repeats(call, wait) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    collects = gc.isenabled()
    gc.disable()
    try:
        for _ in range(samples):
            for name, call in calls.items():
                found[name].append(_sample(call, repeats[name], wait))
    finally:
        if collects:
            gc.enable()

    def ratio(name: str) -> float:
        return estimate([a / b for a, b in zip(found[name], found[yardstick], strict=True)]).median

    return [CallTime(name, estimate(found[name]), yardstick, ratio(name)) for name in calls]


def _repeats(call: Call, wait: Call) -> int:
    once = min(_sample(call, 5, wait) for _ in range(4))
    return max(1, math.ceil(_SAMPLE_S * 1e6 / max(once, 0.02)))


def _sample(call: Call, repeats: int, wait: Call) -> float:
    """The host's time for one of many calls. It does not count the waits for the GPU that keep its queue short."""
    spent, left = 0, repeats
    while left > 0:
        now = min(left, _MOST_QUEUED)
        wait()
        started = time.perf_counter_ns()
        for _ in range(now):
            call()
        spent += time.perf_counter_ns() - started
        left -= now
    return spent / repeats / 1e3


def _nothing() -> None:
    pass
