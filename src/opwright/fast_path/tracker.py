"""Calls that autograd tracks, with a native node of autograd's graph in place of an ``autograd.Function``.

Only for gradients of which it is known what they save; a ``setup_context`` that does more than that (see
``setup_selection.py``) needs the ctx of an ``autograd.Function``.

A node (``templates/tracked_call.h``) saves tensors as torch's own operators do, so versions, hooks of saved tensors,
freed graphs and checkpoints need no code here. A kernel's output that is not new, or has no gradient, goes to the
``autograd.Function``. Compiled autograd takes the gradient as one call that it does not trace. A node is freed without
Python's lock, for which a thread of the engine would wait; the next tracked call drops the Python objects that it held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from opwright.contract.contract import Contract
from opwright.fast_path.extension import FastCalls, TrackedCall
from opwright.fast_path.recorded_gradient import GradientRecorder, RecordableGradient

__all__ = ["Tracker"]

Function = Callable[..., Any]


class _Gradient(RecordableGradient, Protocol):
    """The gradient of an operator; ``runtime.register.gradients.Gradient`` says more."""

    @property
    def sources(self) -> tuple[int, ...] | None: ...
    @property
    def materialize_grads(self) -> bool: ...
    def fits(self, arguments: Sequence[Any]) -> bool: ...
    def gradients(
        self, values: Sequence[Any], needs_input_grad: Sequence[Any], grads: Sequence[Any]
    ) -> Sequence[Any]: ...


class Tracker:
    """Makes the tracked calls of an operator.

    Args:
        gradient: returns the operator's gradient; a call keeps the one of its forward.
        name: that of a call in autograd's graph.
        in_python: makes a function that tracks in Python: it takes the arguments, then what runs on them.
        for_each: completes what a backward returned to a gradient, or None, for each argument; takes it, and how many
            arguments there are.
    """

    def __init__(
        self,
        contract: Contract,
        gradient: Callable[[], _Gradient],
        name: str,
        in_python: Callable[[], Function],
        for_each: Callable[[tuple[Any, ...], int], tuple[Any, ...]],
    ) -> None:
        self._contract = contract
        self._gradient = gradient
        self._name = name
        self._in_python = in_python
        self._for_each = for_each

    def tracking(self, extension: FastCalls, arguments: Sequence[Any], run: Function) -> Function | None:
        """A function of arguments like these that runs ``run`` tracked by autograd; None if only an
        ``autograd.Function`` can."""
        contract, gradient = self._contract, self._gradient()
        sources = gradient.sources
        if sources is None or not gradient.fits(arguments):
            return None
        signature, in_python = contract.signature, self._in_python()
        is_tensor = tuple(isinstance(a, torch.Tensor) for a in arguments)
        recorder = GradientRecorder(contract, gradient, is_tensor, extension)
        return extension.tracked_call(
            TrackedCall(
                name=self._name,
                is_tensor=is_tensor,
                sources=sources,
                outputs=len(signature.returns) if signature.returns_tuple else 0,
                visible=signature.visible,
                materialize_grads=gradient.materialize_grads,
                run=run,
                again=lambda output, *arguments: in_python(*arguments, lambda *_: output),
                needs=tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in arguments),
                gradients=self._gradients_of(gradient, recorder),
                refuse=self._refuse,
                recordings=recorder.recordings,
                watched=() if gradient.selection is None else gradient.selection.watched,
                is_same=recorder.is_same,
                drop=recorder.drop,
            )
        )

    def _gradients_of(self, gradient: _Gradient, recorder: GradientRecorder) -> Callable[..., tuple[Any, ...]]:
        """Takes saved values, which gradients are needed, and those of the outputs. The gradient is that of the
        forward's time, whose values were saved."""
        gradients, positional = gradient.gradients, len(self._contract.signature.positional)

        def checked(values: tuple[Any, ...], needs: tuple[bool, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
            found = tuple(gradients(values, needs, grads))
            if len(found) != positional:
                found = self._for_each(found, len(needs))
            recorder.see(values, needs, grads, found)
            return found

        return checked

    def _refuse(self, position: int, gradient: Any, is_tensor: bool) -> None:
        """Raise the error of an ``autograd.Function`` for a gradient that autograd does not take."""
        if is_tensor:
            raise RuntimeError(f"expected Variable or None (got {type(gradient).__name__})")
        raise RuntimeError(
            f"function {self._name} returned a gradient different than None at position {position + 1}, "
            "but the corresponding forward input was not a Variable"
        )
