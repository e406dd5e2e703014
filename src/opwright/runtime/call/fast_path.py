"""The fast path of a call: straight to a kernel, past torch's dispatcher.

A Python operator costs several microseconds on its way through the dispatcher, as much as a small kernel itself.
Nothing on that way matters for a *plain* call: no gradient, no torch.compile, no mode, no functorch transform, no
tensor subclass, no autocast, no lazy conjugate, no profiler. Two questions decide whether a call is plain, and nothing
else does: does anybody listen (``internals.dispatch.anybody_listens``), and are its tensors and its thread plain?

The second takes microseconds to answer in Python, and what follows from it (do the arguments agree with the contract,
which kernels apply) as well. All of that depends on the tensors' types, dtypes, devices, sizes, strides and dispatch
keys, on the thread's keys and on the other arguments: on just what torch.compile's guards compare in one C++ call of
0.2 µs (benchmarks/results/2026-11-21-cpu-calls.json). So a plain call leaves such a guard behind, with what was found
out for it: a *guarded call*. A later call for which the guard holds needs the first question only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import torch

from opwright.internals.dispatch import anybody_listens, is_plain_tensor, is_plain_thread
from opwright.internals.guards import HAS_GUARDS, guard_tensors

__all__ = ["GuardableKernel", "GuardedCall", "guard_call", "is_plain_call", "static_key"]

Function = Callable[..., Any]


def is_plain_call(arguments: Sequence[Any], *, autograd_tracked: bool = False) -> bool:
    """Whether nothing that the dispatcher would do matters for these arguments, right now.

    Args:
        autograd_tracked: nothing but to have autograd take notice of the call.
    """
    if anybody_listens() or not is_plain_thread():
        return False
    tracks = torch.is_grad_enabled() and not autograd_tracked
    return all(_is_plain(argument, tracks) for argument in arguments)


def _is_plain(argument: Any, tracks: bool) -> bool:
    if isinstance(argument, torch.Tensor):
        return is_plain_tensor(argument) and not (tracks and argument.requires_grad)
    if isinstance(argument, list | tuple):
        return all(_is_plain(item, tracks) for item in argument)
    return True


class GuardableKernel(Protocol):
    """What a guarded call asks of a kernel: of opwright's own, and of those in a shipped package."""

    @property
    def when(self) -> Callable[..., bool] | None: ...
    @property
    def is_loaded(self) -> bool: ...
    def launch(self, arguments: Sequence[Any], device: int | None) -> Any: ...
    def launch_for_calls_like(self, arguments: Sequence[Any], device: int | None) -> Function: ...


class GuardedCall(NamedTuple):
    """What to do for arguments like these: two functions of an operator's arguments.

    They are put together when the guard is made, so that a call passes through as few of Python's frames as it can:
    for tensors only, ``holds`` is torch's guard itself; for one CPU kernel without a ``when``, ``run`` is the kernel.
    """

    # Whether arguments are like those that this was made for, and autograd takes notice of them or not, as then.
    holds: Callable[..., bool]
    run: Function


def guard_call(
    arguments: Sequence[Any], kernels: Sequence[GuardableKernel], fallback: Function, track: Function | None = None
) -> GuardedCall | None:
    """What a call leaves behind that was found plain and valid just now; None where there is no guard for it.

    Args:
        kernels: the applicable ones, in order; each one's own ``when`` is still to be asked.
        fallback: what runs where no kernel does.
        track: for a call that is plain but for autograd: takes the arguments and what is to run on them, and has
            autograd take notice.
    """
    holds = _guard(arguments)
    if holds is None:
        return None
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    device = tensors[0].get_device() if tensors[0].is_cuda else None
    run = _first_applicable(kernels, arguments, device, fallback)
    if any(t.requires_grad for t in tensors):
        holds = _while_autograd_is(track is not None, holds)
    return GuardedCall(holds, run if track is None else _tracked(track, run))


def _guard(arguments: Sequence[Any]) -> Callable[..., bool] | None:
    """A function that tells whether arguments are like these: tensors by type, dtype, device, sizes, strides, dispatch
    keys and whether they require a gradient, the rest by type and value. None where there are lists, or no tensor.

    It asks nothing of modes, or of whether gradients are recorded.
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
    if not first or not HAS_GUARDS:
        return None
    positions = tuple(first.values())
    check = guard_tensors([arguments[i] for i in positions])
    return _with_the_rest(check, positions, repeats, constants) if repeats or constants else check


def _with_the_rest(
    check: Callable[..., bool],
    positions: Sequence[int],
    repeats: Sequence[tuple[int, int]],
    constants: Sequence[tuple[int, type, Any]],
) -> Callable[..., bool]:
    """torch's guard of the tensors at some positions, and of what it does not compare: a tensor given twice, and
    arguments that are no tensors."""

    only = positions[0] if len(positions) == 1 else None
    pick = itemgetter(*positions)  # of one position it gives the item, of several a tuple of them

    def holds(*arguments: Any) -> bool:
        for position, kind, value in constants:
            given = arguments[position]
            if type(given) is not kind or given != value:
                return False
        for position, earlier in repeats:
            if arguments[position] is not arguments[earlier]:
                return False
        return check(arguments[only]) if only is not None else check(*pick(arguments))

    return holds


def _while_autograd_is(tracking: bool, holds: Callable[..., bool]) -> Callable[..., bool]:
    """A guard that holds in one state of grad mode only: torch's compares whether tensors require a gradient."""
    is_on = torch.is_grad_enabled

    def holds_then(*arguments: Any) -> bool:
        return is_on() is tracking and holds(*arguments)

    return holds_then


def _tracked(track: Function, run: Function) -> Function:
    def tracked(*arguments: Any) -> Any:
        return track(*arguments, run)

    return tracked


def _first_applicable(
    kernels: Sequence[GuardableKernel], like: Sequence[Any], device: int | None, fallback: Function
) -> Function:
    choices = [(k.when, _launcher(k, like, device)) for k in kernels]
    if choices and choices[0][0] is None:
        return choices[0][1]

    def choose(*arguments: Any) -> Any:
        for when, run in choices:
            if when is None or when(*arguments):
                return run(*arguments)
        return fallback(*arguments)

    return choose


def _launcher(kernel: GuardableKernel, like: Sequence[Any], device: int | None) -> Function:
    if kernel.is_loaded:
        return kernel.launch_for_calls_like(like, device)
    # One that no call has needed so far is not compiled for the guard's sake.
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
