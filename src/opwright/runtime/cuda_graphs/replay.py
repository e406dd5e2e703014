"""Replays of a captured step in Python, and who replays it.

Outputs and gradients are the graphs' own memory if references to a storage can be counted; otherwise they are copies.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from opwright.errors import CudaGraphError
from opwright.internals.cuda import COUNTS_HOLDERS, backward_may_run_again, holders_of
from opwright.internals.tensors import version_of, was_written
from opwright.runtime.cuda_graphs.step import CapturedStep, refuse_subclasses

__all__ = ["REFUSALS", "Replay", "Replayed", "see_free_step", "take_free_steps"]

# Takes the tensors of a call, returns its outputs; and tells whether the step can serve another call.
Replay = tuple[Callable[..., Sequence[Tensor]], Callable[[], bool]]

# Why a backward does not run.
REFUSALS: dict[str, Callable[[], CudaGraphError]] = {
    "second derivative": lambda: CudaGraphError(
        "create_graph=True: CUDA graphs have no second derivatives", fix="call it without graphs there"
    ),
    "freed": lambda: CudaGraphError(
        "the backward of this call has run before, and its saved values are freed",
        fix="pass retain_graph=True to the first backward",
    ),
    "overwritten": lambda: CudaGraphError(
        "an output or a parameter that the backward needs was modified in place",
        fix="run the backward first, or modify a clone",
    ),
}


class Replayed:
    """A captured step and how it is replayed.

    Attributes:
        step: the step.
        run: takes the tensors of a call, returns its outputs.
        is_free: whether the step can serve another call.
        is_native: whether native code does so.
    """

    def __init__(self, step: CapturedStep) -> None:
        self.step = step
        in_python = ReplayInPython(step)
        self.is_native = False
        self.run: Callable[..., Sequence[Tensor]] = in_python
        self.is_free: Callable[[], bool] = in_python.is_free

    def run_for_copies(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Replay a call without gradients; return copies of its outputs, so that the step is free again at once."""
        outputs = self.run(*tensors)
        with torch.no_grad():
            return [o.clone() if lent else o for o, lent in zip(outputs, self.step.is_lent, strict=True)]

    def replay_natively(self, replay: Replay) -> None:
        """Replay in native code from now on. The step is free."""
        (self.run, self.is_free), self.is_native = replay, True


def _leave_in_python(replayed: Replayed) -> None:
    """Nothing is faster."""


# Called with each free step before it is replayed. opwright sets it (native_replay.py); packages replay in Python.
_see_free_step: Callable[[Replayed], None] = _leave_in_python


def take_free_steps(see: Callable[[Replayed], None]) -> None:
    """Have a function look at each free step before it is replayed."""
    global _see_free_step
    _see_free_step = see


def see_free_step(replayed: Replayed) -> None:
    """Let it be replayed in native code if that is to be had."""
    _see_free_step(replayed)


class Lease:
    """Reserves the memory of a step for a call until its backward. Autograd holds it."""

    __slots__ = ("__weakref__",)


def _no_lease() -> None:
    """Replaces a reference to a lease."""


class ReplayInPython:
    """Replays a step in Python."""

    def __init__(self, step: CapturedStep) -> None:
        self._step = step
        # Functions that count the references to each lent tensor, and the counts while none is in use.
        self._holders = [holders_of(t) for t in step.lent] if COUNTS_HOLDERS else []
        self._idle = [count() for count in self._holders]
        # A reference to the lease of the latest call, which lives as long as that call's backward may run.
        self._lease: Callable[[], Lease | None] = _no_lease
        self._versions: list[int | None] = []

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Replay the forward."""
        outputs: Sequence[Tensor] = self.run(tensors) if self._step.backward is None else _apply(self, *tensors)
        return outputs

    def is_free(self) -> bool:
        """Whether its backward can no longer run, and none of its outputs and gradients is in use."""
        return self._lease() is None and self._idle == [count() for count in self._holders]

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Replay the forward, of which autograd knows nothing."""
        step = self._step
        step.forward.replay([tensor for tensor, is_copied in zip(tensors, step.is_copied, strict=True) if is_copied])
        make_output = Tensor.detach if COUNTS_HOLDERS else Tensor.clone
        with torch.no_grad():
            return [make_output(o) for o in step.outputs]

    @property
    def is_differentiable(self) -> Sequence[bool]:
        """Whether each output is."""
        return self._step.is_differentiable

    def lease(self) -> Lease:
        """Reserve the memory until the backward."""
        self._versions = [version_of(tensor) for tensor in self._step.watched]
        lease = Lease()
        self._lease = weakref.ref(lease)
        return lease

    def run_backward(self, lease: Lease, output_gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Replay the backward.

        Raises:
            ArgumentError: a gradient is a tensor subclass.
            CudaGraphError: saved values have been overwritten.
        """
        self._refuse_overwritten(lease)
        refuse_subclasses(output_gradients)
        step = self._step
        assert step.backward is not None  # else no output is differentiable
        incoming = [g for g, wanted in zip(output_gradients, step.is_differentiable, strict=True) if wanted]
        step.backward.replay(
            [
                torch.zeros_like(own) if gradient is None or _has_no_memory(gradient) else gradient
                for own, gradient in zip(step.output_gradients, incoming, strict=True)
            ]
        )
        make_gradient = Tensor.detach if COUNTS_HOLDERS else Tensor.clone
        if backward_may_run_again():
            make_gradient = Tensor.clone  # the next backward writes into the same memory
        else:
            self._lease = _no_lease  # a reference to this iteration's loss does not block the memory
        return [make_gradient(g) if g is not None else None for g in step.gradients]

    def _refuse_overwritten(self, lease: Lease) -> None:
        if self._lease() is not lease:
            raise REFUSALS["freed"]()
        if any(was_written(t, version) for t, version in zip(self._step.watched, self._versions, strict=True)):
            raise REFUSALS["overwritten"]()


class _ReplayFunction(torch.autograd.Function):
    """The autograd function of a call."""

    @staticmethod
    def forward(ctx: Any, replay: ReplayInPython, *tensors: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.replay = replay
        outputs = replay.run(tensors)
        ctx.lease = replay.lease()
        if not all(replay.is_differentiable):
            both = zip(outputs, replay.is_differentiable, strict=True)
            ctx.mark_non_differentiable(*[output for output, is_differentiable in both if not is_differentiable])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *output_gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # raise now: torch would treat the gradients as constants
            raise REFUSALS["second derivative"]()
        return None, *ctx.replay.run_backward(ctx.lease, output_gradients)


# Skips Function.apply's own test for torch.func, which has been refused.
_apply: Callable[..., Any] = getattr(super(torch.autograd.Function, _ReplayFunction), "apply", _ReplayFunction.apply)


def _has_no_memory(gradient: Tensor) -> bool:
    """Whether a gradient is one of autograd's zero tensors without memory."""
    return gradient.data_ptr() == 0 and gradient.numel() > 0
