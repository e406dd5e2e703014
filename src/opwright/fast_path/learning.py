"""Lets calls like one that was made skip torch's dispatcher: which calls, how many kinds of them, and until when.

A call is learned after it went the plain way, if nothing but the dispatcher's own way to the kernel had a part in it.
It leaves a guard (``guards.py``) and the function of its kernel. What is kept is bounded: a new guard replaces the one
that has taken the fewest calls, and an owner that keeps missing stops learning.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from opwright.contract.contract import Contract
from opwright.contract.signature import Signature
from opwright.fast_path.extension import FastCalls, GuardedCall
from opwright.fast_path.guards import expected_arguments, guarded_arity, has_any_size
from opwright.fast_path.switch import extension_in_use
from opwright.internals.dispatch import is_plain_call

__all__ = ["GuardableKernel", "Learner", "Learning", "are_same", "received", "run_of"]

Function = Callable[..., Any]
# The number of guards of an operator or a kernel: a loop over the layers of a model needs a few.
_MOST_GUARDS = 8
# A guard costs some hundred microseconds. After so many, an owner whose calls keep missing learns no more.
_MOST_LEARNED = 32


class GuardableKernel(Protocol):
    """The interface of a kernel for a guarded call."""

    @property
    def when(self) -> Callable[..., bool] | None: ...
    @property
    def is_loaded(self) -> bool: ...
    def launch(self, arguments: Sequence[Any], device: int | None) -> Any: ...
    def launch_for_calls_like(self, arguments: Sequence[Any], device: int | None) -> Function: ...
    def free_kinds(self) -> tuple[type, ...]: ...


@dataclass(frozen=True)
class Learning:
    """One call that may be learned: from before it is made until it has succeeded.

    Attributes:
        arguments: converted, in signature order.
        tracked: whether autograd tracks it.
        changes: how often the owner had changed.
    """

    extension: FastCalls
    arguments: Sequence[Any]
    tracked: bool
    changes: int


class Learner:
    """What an operator, or a kernel that is called by its name, has learned.

    The extension reads ``_guarded_calls``, ``_arity``, ``_tails``, ``_floats`` and ``_outputs`` of it at each call.
    """

    def __init__(self, contract: Contract) -> None:
        signature = contract.signature
        self._guarded_calls: tuple[GuardedCall, ...] = ()
        self._arity, self._tails = guarded_arity(contract), contract.tails
        self._floats = tuple(i for i, a in enumerate(signature.arguments) if a.scalar_type is float)
        visible = min(signature.visible, len(signature.returns))
        # How many tensors a call returns in a tuple; -1 for one tensor alone, -2 for what only the dispatcher knows.
        self._outputs = -2 if signature.returns_list else -1 if visible == 1 and _is_alone(signature) else visible
        self._contract = contract
        self._refuse = contract.refuse_form
        self._learned = 0
        self._changes = 0
        self._lock = threading.Lock()

    def begin(self, arguments: Sequence[Any], *, may_be_tracked: bool) -> Learning | None:
        """Whether a call can be learned; asked before it is made.

        Args:
            may_be_tracked: whether calls that autograd tracks can be.
        """
        if self._arity < 0 or self._outputs < -1 or self._learned >= _MOST_LEARNED:
            return None
        extension = extension_in_use()
        if extension is None:
            return None
        if is_plain_call(arguments):
            return Learning(extension, arguments, tracked=False, changes=self._changes)
        # Inference mode leaves autograd out, even where a block in it enables gradients.
        tracks = may_be_tracked and not torch.is_inference_mode_enabled()
        if tracks and is_plain_call(arguments, autograd_tracked=True):
            return Learning(extension, arguments, tracked=True, changes=self._changes)
        return None

    @property
    def takes_positional(self) -> bool:
        """Whether guards take the complete arguments of a call by position."""
        return self._arity >= 0

    @property
    def is_last(self) -> bool:
        """Whether the next call is the last that is learned. It leaves a guard of any size, if it can, for a function
        that is not specialised."""
        return self._learned == _MOST_LEARNED - 1

    def learn(
        self, call: Learning, run: Function, kernels: Sequence[GuardableKernel], name: str | None, *, any_size: bool
    ) -> None:
        """Learn a call that has succeeded.

        Args:
            run: what runs on arguments for which the guard holds.
            kernels: those that it may run.
            name: the operator whose registration with torch is part of the guard; None for a kernel's own calls.
            any_size: whether ``run`` is for any sizes.
        """
        of_any_size = any_size and has_any_size(self._contract)
        kinds = {kind for kind in (int, float) if all(kind in kernel.free_kinds() for kernel in kernels)}
        items = expected_arguments(self._contract, call.arguments, any_size=of_any_size, free_kinds=kinds)
        if items is None:
            return
        tensors = [a for a in call.arguments if isinstance(a, torch.Tensor)]
        tracking = int(call.tracked) if any(t.requires_grad for t in tensors) else -1
        try:
            guard = call.extension.guard(items, tracking, not call.tracked, name)
        except (RuntimeError, ValueError):  # the dispatcher has no kernel for one of the keys
            return
        with self._lock:
            if call.changes == self._changes:
                kept = self._kept(call.extension)
                self._guarded_calls = (*kept, (guard, run)) if self.is_last else ((guard, run), *kept)
                self._learned += 1

    def _kept(self, extension: FastCalls) -> tuple[GuardedCall, ...]:
        """The guarded calls that stay when one is added: without the one that took the fewest calls."""
        if len(self._guarded_calls) < _MOST_GUARDS:
            return self._guarded_calls
        least = min(self._guarded_calls, key=lambda guarded: extension.hits_of(guarded[0]))
        return tuple(guarded for guarded in self._guarded_calls if guarded is not least)

    def forget(self) -> None:
        """Kernels or rules have changed: begin anew."""
        with self._lock:
            self._changes += 1
            self._learned = 0
            self._guarded_calls = ()


def _is_alone(signature: Signature) -> bool:
    """Whether the one output of a call is returned as a tensor, not in a tuple."""
    return not signature.returns_tuple or signature.visible < len(signature.returns)


def run_of(
    kernels: Sequence[GuardableKernel],
    arguments: Sequence[Any],
    device: int | None,
    fallback: Function,
    *,
    specialise: bool = True,
) -> Function:
    """A function of arguments like these that runs the first kernel whose ``when`` holds, else ``fallback``.

    Args:
        kernels: the applicable ones in order.
        device: the GPU of the call's tensors; None if they are on another device.
        specialise: whether kernels may run in a form for calls like this one only.
    """
    choices = [(kernel.when, _launcher(kernel, arguments, device, specialise)) for kernel in kernels]
    if not choices:
        return fallback
    if choices[0][0] is None:
        return choices[0][1]

    def choose(*arguments: Any) -> Any:
        for when, run in choices:
            if when is None or when(*arguments):
                return run(*arguments)
        return fallback(*arguments)

    return choose


def _launcher(kernel: GuardableKernel, like: Sequence[Any], device: int | None, specialise: bool) -> Function:
    if kernel.is_loaded and specialise:
        return kernel.launch_for_calls_like(like, device)
    # A kernel that no call has needed so far is not compiled for the guard.
    return lambda *arguments: kernel.launch(arguments, device)


class _Received(threading.local):
    """What the dispatcher has passed to the operators of this thread in a call, while one is learned."""

    calls: list[tuple[Any, Sequence[Any]]] | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[list[tuple[Any, Sequence[Any]]]]:
        before, self.calls = self.calls, []
        try:
            yield self.calls
        finally:
            self.calls = before

    def note(self, operator: Any, arguments: Sequence[Any]) -> None:
        if self.calls is not None and not self.calls:  # later ones are calls that the kernel makes
            self.calls.append((operator, [[*a] if isinstance(a, list) else a for a in arguments]))


received = _Received()


def are_same(ones: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether a kernel cannot tell two sequences of arguments apart."""
    return len(ones) == len(others) and all(map(_is_same, ones, others))


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return isinstance(other, list) and are_same(one, other)
    return one is other or (type(one) is type(other) and not isinstance(one, torch.Tensor) and repr(one) == repr(other))
