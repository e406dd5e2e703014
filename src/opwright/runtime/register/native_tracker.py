"""Calls that autograd tracks, with a native node of autograd's graph in place of an ``autograd.Function``.

Only for gradients of which it is known what they save; a ``setup_context`` that does more than that (see
``setup_selection.py``) needs the ctx of an ``autograd.Function``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from opwright.backends.gpu.recording import recording_is_off
from opwright.backends.native.tracked_call import TrackedCall, TrackedCalls
from opwright.contract.contract import Contract
from opwright.runtime.register.autograd_function import gradient_for_each, gradient_name
from opwright.runtime.register.recorded_gradient import GradientRecorder
from opwright.runtime.register.rules import Rules

__all__ = ["can_track_natively", "track_natively"]

Function = Callable[..., Any]


def can_track_natively(rules: Rules, arguments: Sequence[Any]) -> bool:
    """Whether the gradient of calls like one with these arguments needs no ``autograd.Function``."""
    return rules.gradient.sources is not None and rules.gradient.fits(arguments)


def track_natively(
    calls: TrackedCalls, rules: Rules, arguments: Sequence[Any], run: Function, in_python: Function
) -> Function:
    """A function of arguments like these that runs ``run`` tracked by autograd.

    Args:
        in_python: the same as ``make_tracker`` makes it, for outputs that are not new tensors with a gradient.
    """
    contract, sources = rules.contract, rules.gradient.sources
    assert sources is not None
    signature = contract.signature
    is_tensor = tuple(isinstance(a, torch.Tensor) for a in arguments)
    recorder = None if recording_is_off() else GradientRecorder(contract, rules.gradient, is_tensor, calls)
    call = TrackedCall(
        name=gradient_name(contract),
        is_tensor=is_tensor,
        sources=sources,
        outputs=len(signature.returns) if signature.returns_tuple else 0,
        visible=signature.visible,
        run=run,
        again=lambda output, *arguments: in_python(*arguments, lambda *_: output),
        needs=tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in arguments),
        gradients=_gradients_of(rules, recorder),
        refuse=_refusing(contract),
        tapes=[] if recorder is None else recorder.tapes,
    )
    return calls.function_for(call)


def _gradients_of(rules: Rules, recorder: GradientRecorder | None) -> Callable[..., tuple[Any, ...]]:
    """Takes saved values, which gradients are needed, and those of the outputs. The gradient is that of the forward's
    time, whose values were saved."""
    contract, gradients = rules.contract, rules.gradient.gradients
    positional = len(contract.signature.positional)

    def checked(values: tuple[Any, ...], needs: tuple[bool, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
        found = tuple(gradients(values, needs, grads))
        if len(found) != positional:
            found = gradient_for_each(contract, found, len(needs))
        if recorder is not None:
            recorder.see(values, needs, grads, found)
        return found

    return checked


def _refusing(contract: Contract) -> Callable[[int, Any, bool], None]:
    """Raises the error of an ``autograd.Function`` for a gradient that autograd does not take."""

    def refuse(position: int, gradient: Any, is_tensor: bool) -> None:
        if is_tensor:
            raise RuntimeError(f"expected Variable or None (got {type(gradient).__name__})")
        raise RuntimeError(
            f"function {gradient_name(contract)} returned a gradient different than None at position {position + 1}, "
            "but the corresponding forward input was not a Variable"
        )

    return refuse
