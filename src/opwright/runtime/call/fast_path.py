"""The fast path of a call: directly to a kernel, without torch's dispatcher.

A Python operator costs several microseconds in the dispatcher, as much as a small kernel itself. The dispatcher has no
effect on a *plain* call: no gradient, no torch.compile, no mode, no functorch transform, no tensor subclass, no
autocast, no lazy conjugate, no profiler. Two tests decide whether a call is plain: whether something intercepts calls
(``internals.dispatch.is_intercepted``), and whether its tensors and its thread are plain.

The second test takes microseconds in Python, and so do checking the arguments against the contract and finding the
applicable kernels. All of these depend on the tensors' types, dtypes, devices, sizes, strides and dispatch keys, on the
thread's keys and on the other arguments: exactly the properties that torch.compile's guards compare in one C++ call of
0.2 µs (benchmarks/results/2026-11-21-cpu-calls.json). So a plain call makes such a guard together with the chosen
kernel: a *guarded call*. A later call with a guard hit needs the first test only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from opwright.contract.contract import Contract
from opwright.internals.dispatch import is_intercepted, is_plain_tensor, is_plain_thread
from opwright.runtime.call.guard import Guard, holds_in_python, make_guard

__all__ = [
    "GuardableKernel", "GuardedCall", "Track", "guard_call", "guarded_arity", "is_plain_call", "newest_first",
    "static_key", "with_visible_outputs",
]  # fmt: skip

Function = Callable[..., Any]
Track = Callable[[Sequence[Any], Function], Function]
# The number of guards of an operator or a kernel: a loop over the layers of a model needs a few.
_MOST_GUARDS = 8


def is_plain_call(arguments: Sequence[Any], *, autograd_tracked: bool = False) -> bool:
    """Whether the dispatcher has no effect on these arguments, right now.

    Args:
        autograd_tracked: ignore autograd, because the call is tracked separately.
    """
    if is_intercepted() or not is_plain_thread():
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
    """The interface of a kernel for a guarded call, in opwright and in a shipped package."""

    @property
    def when(self) -> Callable[..., bool] | None: ...
    @property
    def is_loaded(self) -> bool: ...
    def launch(self, arguments: Sequence[Any], device: int | None) -> Any: ...
    def launch_for_calls_like(self, arguments: Sequence[Any], device: int | None) -> Function: ...


class GuardedCall(NamedTuple):
    """A guard, and what to run on a guard hit: two functions of an operator's arguments.

    They are composed when the guard is made, so that a call has as few Python frames as possible:
    for tensors only, ``holds`` is torch's guard itself; for one CPU kernel without a ``when``, ``run`` is the kernel.
    """

    # Whether arguments are like those of the earlier call, also in whether autograd tracks them.
    holds: Callable[..., bool]
    run: Function


def guard_call(
    arguments: Sequence[Any],
    kernels: Sequence[GuardableKernel],
    fallback: Function,
    track: Track | None = None,
    holds: Callable[[Guard], Function] = holds_in_python,
) -> GuardedCall | None:
    """Make a guarded call from a plain and valid call; None if there is no guard for it.

    Args:
        kernels: the applicable kernels in order; each kernel's own ``when`` is not yet evaluated.
        fallback: runs if no kernel does.
        track: for a call that is plain except for autograd: takes the arguments and a function of such arguments, and
            returns one that autograd tracks.
        holds: makes a function that tells whether a guard holds.
    """
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    tracks = any(t.requires_grad for t in tensors)
    guard = make_guard(arguments, track is not None if tracks else None)
    if guard is None:
        return None
    device = tensors[0].get_device() if tensors[0].is_cuda else None
    run = _first_applicable(kernels, arguments, device, fallback)
    return GuardedCall(holds(guard), run if track is None else track(arguments, run))


def guarded_arity(contract: Contract) -> int:
    """The number of positional arguments that are all arguments of a call, as guards take them; -1 if some are
    keyword-only, or are converted first."""
    return -1 if contract.signature.keyword_only or contract.signature.groups else len(contract.signature.arguments)


def newest_first(guarded: GuardedCall, others: Sequence[GuardedCall]) -> tuple[GuardedCall, ...]:
    """The guarded calls that are kept when one is made."""
    return guarded, *others[: _MOST_GUARDS - 1]


def with_visible_outputs(guarded: GuardedCall, contract: Contract) -> GuardedCall:
    """The guarded call without outputs that are saved for the backward."""
    if contract.signature.visible == len(contract.signature.returns):
        return guarded
    run, visible = guarded.run, contract.visible
    return guarded._replace(run=lambda *arguments: visible(run(*arguments)))


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
    # A kernel that no call has needed so far is not compiled for the guard.
    return lambda *arguments: kernel.launch(arguments, device)


def static_key(arguments: Sequence[Any]) -> Any:
    """The properties that the checks of a call depend on: shapes, dtypes, devices, layouts, and scalars
    by type and value."""
    return tuple(
        (a.shape, a.dtype, a.device, a.layout)
        if isinstance(a, torch.Tensor)
        else static_key(a)
        if isinstance(a, list | tuple)
        else (type(a), a)
        for a in arguments
    )
