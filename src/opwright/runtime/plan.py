"""A call that was seen before, recognised in one step.

Whether an eager call is plain (see ``door``), whether its arguments agree with the contract and which kernels fit them
follows from the tensors' types, dtypes, devices, sizes, strides and dispatch keys, from the thread's dispatch state
and from the other arguments. torch.compile's guards compare all that of the tensors and the thread in one C++ call of
0.24 µs, where asking for each in Python takes 3.3 (benchmarks/results/2026-11-21-cpu-calls.json). So a plain call
leaves such a guard behind, with what was found out for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch._C._dynamo.guards import TensorGuards

__all__ = [
    "Plan", "Planned", "dispatch_modes", "function_mode_is_on", "grad_is_on", "make_plan", "profiler_is_on",
    "static_key",
]  # fmt: skip

_C = torch._C
# Who has a say in calls besides the dispatcher's keys, which a plan's guard compares. Looked up once: each dot of
# ``torch._C._autograd._profiler_enabled`` is a part of a call's time.
function_mode_is_on = _C._is_torch_function_mode_enabled
profiler_is_on = _C._autograd._profiler_enabled
dispatch_modes = _C._len_torch_dispatch_stack  # of torch's own modes, such as that of fake tensors, no key tells
grad_is_on = _C.is_grad_enabled


class Planned(Protocol):
    """What a plan asks of a kernel: of opwright's own, and of those in a shipped package."""

    @property
    def when(self) -> Callable[..., bool] | None: ...
    @property
    def is_loaded(self) -> bool: ...
    def launch(self, arguments: Sequence[Any], device: int | None) -> Any: ...
    def launch_for_calls_like(self, arguments: Sequence[Any], device: int | None) -> Callable[..., Any]: ...


class Plan(NamedTuple):
    """What to do for arguments like these: two functions of an operator's arguments.

    They are put together when the plan is made, so that a call passes through as few of Python's frames as it can:
    for tensors only, ``holds`` is the guard itself; for one CPU kernel without a ``when``, ``run`` is the kernel.
    """

    # Whether gradients are recorded in such calls; None where no argument requires one. The guard compares only
    # whether tensors require a gradient.
    recording: bool | None
    # Whether arguments are like those that the plan was made for. Asks nothing of modes or the profiler.
    holds: Callable[..., bool]
    run: Callable[..., Any]


def make_plan(
    arguments: Sequence[Any],
    kernels: Sequence[Planned],
    otherwise: Callable[..., Any],
    record: Callable[..., Any] | None = None,
) -> Plan | None:
    """The plan for a call that was found plain and valid just now; None where arguments hold lists.

    Args:
        kernels: those that fit, in order; each one's own ``when`` is still to be asked.
        otherwise: what runs where no kernel does.
        record: for a call that is plain but for its gradient: takes the arguments and what is to run on them, and has
            autograd take notice.
    """
    holds = _recogniser(arguments)
    if holds is None:
        return None
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    recording = record is not None if any(t.requires_grad for t in tensors) else None
    device = tensors[0].get_device() if tensors[0].is_cuda else None
    run = _first_that_runs(kernels, arguments, device, otherwise)
    return Plan(recording, holds, run if record is None else _recorded(record, run))


def _recogniser(arguments: Sequence[Any]) -> Callable[..., bool] | None:
    """A function that tells whether arguments are like these: tensors by type, dtype, device, sizes, strides, dispatch
    keys and whether they require a gradient, the rest by type and value. None where there are lists, or no tensor.

    It asks nothing of modes or of whether gradients are recorded.
    """
    first: dict[int, int] = {}  # where a tensor comes first, by its id
    repeats = []
    constants = []
    for i, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor):
            if first.setdefault(id(argument), i) != i:
                repeats.append((i, first[id(argument)]))
        elif isinstance(argument, list | tuple) or argument != argument:
            return None
        else:
            constants.append((i, type(argument), argument))
    if not first:
        return None
    positions = tuple(first.values())
    guard = TensorGuards(*[arguments[i] for i in positions], dynamic_dims_sizes=None, dynamic_dims_strides=None)
    return _with_the_rest(guard.check, positions, repeats, constants) if repeats or constants else guard.check


def _with_the_rest(
    check: Callable[..., bool],
    positions: Sequence[int],
    repeats: Sequence[tuple[int, int]],
    constants: Sequence[tuple[int, type, Any]],
) -> Callable[..., bool]:
    """A guard of the tensors at some positions, and of what it has no words for: one tensor given twice, and others."""

    def holds(*arguments: Any) -> bool:
        for position, kind, value in constants:
            given = arguments[position]
            if type(given) is not kind or given != value:
                return False
        for position, earlier in repeats:
            if arguments[position] is not arguments[earlier]:
                return False
        return check(*[arguments[i] for i in positions])

    return holds


def _recorded(record: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(*arguments: Any) -> Any:
        return record(*arguments, run)

    return recorded


def _first_that_runs(
    kernels: Sequence[Planned], like: Sequence[Any], device: int | None, otherwise: Callable[..., Any]
) -> Callable[..., Any]:
    choices = [(k.when, _launcher(k, like, device)) for k in kernels]
    if choices and choices[0][0] is None:
        return choices[0][1]

    def choose(*arguments: Any) -> Any:
        for when, run in choices:
            if when is None or when(*arguments):
                return run(*arguments)
        return otherwise(*arguments)

    return choose


def _launcher(kernel: Planned, like: Sequence[Any], device: int | None) -> Callable[..., Any]:
    if kernel.is_loaded:
        return kernel.launch_for_calls_like(like, device)
    # One that no call has needed so far is not compiled for the plan's sake.
    return lambda *arguments: kernel.launch(arguments, device)


def static_key(arguments: Sequence[Any]) -> Any:
    """What the checks of a call depend on, in any state of the thread: shapes, dtypes, devices, layouts, and scalars
    by type and value."""
    return tuple(
        (a.shape, a.dtype, a.device, a.layout)
        if isinstance(a, torch.Tensor)
        else static_key(a)
        if isinstance(a, list | tuple)
        else (type(a), a)
        for a in arguments
    )
