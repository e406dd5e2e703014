"""Records a derived gradient, so that later ones like it run without Python (``backends/native/tape.py``).

The gradient that is derived from a reference runs the reference again and differentiates it, which in Python takes
several times as long as its operations. After some gradients of calls with the same guard, they are recorded, without
those of the forward that no gradient needs. A tape is kept only if it gives the same bits as the reference did just
before. What the reference may depend on besides its arguments is found in its code (``unrecordable``).
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Sequence
from typing import Any

import torch

from opwright.backends.names_in_code import (
    Watched,
    attribute_names,
    captured,
    is_constant,
    loaded_globals,
    own_functions,
    state_of,
)
from opwright.backends.native.tape import Unrecordable, record
from opwright.backends.native.tracked_call import TrackedCalls
from opwright.contract.contract import Contract
from opwright.contract.dtypes import element_bytes
from opwright.runtime.call.fast_path import is_plain_call
from opwright.runtime.register.gradients import DerivedGradient

__all__ = ["GradientRecorder", "unrecordable"]

# Recording takes some milliseconds. What is called with ever new sizes is not worth it.
_GRADIENTS_BEFORE = 10
_MOST_OF_A_GUARD = 4
_MOST_OF_AN_OPERATOR = 64
_MOST_OPERATIONS = 256

# What torch functions, and attributes of tensors, tell of the thread, the process or the machine.
_OF_THE_MOMENT = frozenset(
    {
        "Generator", "_C", "__dict__", "__globals__", "_dynamo", "_version", "are_deterministic_algorithms_enabled",
        "backends", "current_device", "current_stream", "data_ptr", "environ", "get_autocast_dtype",
        "get_default_device", "get_float32_matmul_precision", "get_num_threads", "get_rng_state", "getenv",
        "initial_seed", "is_autocast_available", "is_autocast_enabled", "is_compiling",
        "is_deterministic_algorithms_warn_only_enabled", "is_dynamo_compiling", "is_exporting", "is_grad_enabled",
        "is_inference_mode_enabled", "is_scripting", "is_tracing", "load", "manual_seed", "mem_get_info",
        "memory_allocated", "memory_reserved", "memory_stats", "ops", "random", "save", "seed", "set_default_device",
        "set_default_dtype", "storage", "synchronize", "untyped_storage",
    }
)  # fmt: skip
_BUILTINS = frozenset(
    {
        "len", "min", "max", "int", "float", "complex", "bool", "range", "tuple", "list", "abs", "sum", "zip",
        "enumerate", "isinstance", "all", "any", "map", "filter", "reversed", "sorted", "divmod", "round", "slice",
        "dict", "set", "str", "pow", "type", "repr", "iter", "next", "NotImplemented", "Ellipsis",
    }
)  # fmt: skip


class GradientRecorder:
    """Sees the gradients of the calls of one guard, and records them.

    Attributes:
        tapes: pairs of a native tape, and of the names that it depends on.
    """

    def __init__(self, gradient: DerivedGradient, calls: TrackedCalls) -> None:
        self.tapes: list[tuple[Any, tuple[Watched, ...]]] = []
        self._gradient = gradient
        self._calls = calls
        self._remaining = _GRADIENTS_BEFORE

    def see(
        self, values: Sequence[Any], needs: Sequence[bool], grads: Sequence[Any], found: Sequence[torch.Tensor | None]
    ) -> None:
        """A gradient was computed in Python: ``found``, one for each value."""
        self._remaining = max(self._remaining - 1, 0)
        if self._remaining or not _is_repeatable_now((*values, *grads)):
            return
        if len(self.tapes) >= _MOST_OF_A_GUARD or self._gradient.recordings >= _MOST_OF_AN_OPERATOR:
            return
        self._gradient.recordings += 1
        try:
            self._record(values, needs, grads, found)
        except (Unrecordable, RuntimeError, ValueError):
            self._gradient.recordings = _MOST_OF_AN_OPERATOR
        self._remaining = _GRADIENTS_BEFORE

    def _record(
        self, values: Sequence[Any], needs: Sequence[bool], grads: Sequence[Any], found: Sequence[torch.Tensor | None]
    ) -> None:
        watched = _watched(self._gradient.contract)
        are_tensors = [isinstance(value, torch.Tensor) for value in values]
        saved = [value for value in values if isinstance(value, torch.Tensor)]
        inputs = [each.detach() for each in (*saved, *grads)]

        def of_fakes(fakes: list[torch.Tensor]) -> Sequence[torch.Tensor | None]:
            of_saved = iter(fakes)
            fake_values = [next(of_saved) if is_one else v for v, is_one in zip(values, are_tensors, strict=True)]
            return _of_tensors(self._gradient.of_reference(fake_values, needs, [*of_saved]), are_tensors)

        tape = self._calls.tape_of(record(of_fakes, inputs, _MOST_OPERATIONS), inputs)
        again = self._calls.run_tape(tape, inputs)
        if again is None or not _same(again, _of_tensors(found, are_tensors)):
            raise Unrecordable("its operations alone give something else")
        self.tapes.append((tape, watched))


def _of_tensors(gradients: Sequence[Any], are_tensors: Sequence[bool]) -> list[Any]:
    return [g for g, is_one in zip(gradients, are_tensors, strict=True) if is_one]


def _is_repeatable_now(arguments: Sequence[Any]) -> bool:
    """Whether nothing but the operations matters: no second derivative, no mode, no capture of a CUDA graph."""
    if torch.is_grad_enabled() or torch.is_anomaly_enabled() or not is_plain_call(arguments):
        return False
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _same(ones: Sequence[torch.Tensor | None], others: Sequence[torch.Tensor | None]) -> bool:
    return len(ones) == len(others) and all(_is_same(*pair) for pair in zip(ones, others, strict=True))


def _is_same(one: torch.Tensor | None, other: Any) -> bool:
    if one is None or not isinstance(other, torch.Tensor):  # a gradient that autograd refuses is no tensor
        return one is other
    is_alike = (one.dtype, one.shape, one.stride(), one.device) == (
        other.dtype, other.shape, other.stride(), other.device,
    )  # fmt: skip
    return is_alike and element_bytes(one).equal(element_bytes(other))


# -- what a reference depends on -------------------------------------------------------------------------------------


def _watched(contract: Contract) -> tuple[Watched, ...]:
    """The names that the reference depends on, in the form in which tracked_call.cpp compares them.

    Raises:
        Unrecordable: it may depend on more.
    """
    if contract.random or contract.signature.mutated or contract.signature.language != "torch":
        raise Unrecordable("it is random, writes its arguments, or is in NumPy")
    reason = unrecordable(contract.function)
    if reason is not None:
        raise Unrecordable(reason)
    assert isinstance(contract.function, types.FunctionType)  # else it is not recordable
    return tuple(
        watched
        for function in own_functions(contract.function)
        for watched in (*loaded_globals(function), *captured(function))
        if not isinstance(watched.value, types.ModuleType) and watched.names is not vars(builtins)
    )


def unrecordable(reference: Any) -> str | None:
    """What a reference may depend on besides its arguments, in words; None if there is nothing."""
    if not isinstance(reference, types.FunctionType):
        return "it is no plain function"
    return next(filter(None, map(_reason, own_functions(reference))), None)


def _reason(function: types.FunctionType) -> str | None:
    state = state_of(function)
    if state is not None:
        return state
    for watched in (*loaded_globals(function), *captured(function)):
        if not _is_known(watched):
            return f"it uses {watched.name}"
    return next((f"it uses {name}" for name in attribute_names(function) if name in _OF_THE_MOMENT), None)


def _is_known(watched: Watched) -> bool:
    value = watched.value
    if watched.names is vars(builtins):
        is_error = isinstance(value, type) and issubclass(value, Exception)
        return watched.name in _BUILTINS or is_error
    if isinstance(value, types.ModuleType):
        return _is_library(value.__name__)
    if isinstance(value, types.FunctionType):
        return watched.name not in _OF_THE_MOMENT and value.__name__ not in _OF_THE_MOMENT  # the user's are followed
    if isinstance(value, types.BuiltinFunctionType):
        return _is_library(value.__module__ or "torch") and value.__name__ not in _OF_THE_MOMENT
    return value is torch.Tensor or is_constant(value)


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in ("torch", "math")
