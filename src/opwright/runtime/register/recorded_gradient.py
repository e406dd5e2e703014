"""Records a gradient, so that later ones like it run without Python (``backends/native/tape.py``).

The gradient that is derived from a reference runs the reference again and differentiates it, which in Python takes
several times as long as its operations. After some gradients of calls with the same guard, they are recorded, without
those of the forward that no gradient needs. So are the operations of a registered backward, which may call other
operators by their names, and the call of a backward operator. A tape is kept only if it gives the same bits as Python
did just before. What a function may depend on besides its arguments is found in its code (``unrecordable``).
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright.backends.names_in_code import (
    Watched,
    attribute_names,
    attributes_of_names,
    captured,
    handles_errors,
    is_constant,
    loaded_globals,
    own_functions,
    state_of,
)
from opwright.backends.native.tape import Unrecordable, record
from opwright.backends.native.tracked_call import TrackedCalls
from opwright.contract.contract import Contract
from opwright.contract.dtypes import element_bytes
from opwright.internals.autograd import saved_tensors_hooks
from opwright.runtime.call.fast_path import is_plain_call
from opwright.runtime.register.backward_operator import BackwardOperator
from opwright.runtime.register.gradients import Gradient

__all__ = ["GradientRecorder", "unrecordable"]

# Recording takes some milliseconds. What is called with ever new sizes is not worth it.
_GRADIENTS_BEFORE = 10
_MOST_OF_A_GUARD = 4
_MOST_OF_AN_OPERATOR = 64
_MOST_OPERATIONS = 256

# What torch functions, and attributes of tensors, tell of the thread, the process or the machine.
_SETTINGS = frozenset(name for name in dir(torch) if name.startswith(("get_", "set_", "use_")) or "_enabled" in name)
_OF_THE_MOMENT = (_SETTINGS - {"get_default_dtype", "get_device", "set_grad_enabled"}) | {
    "Generator", "Parameter", "_C", "__dict__", "__globals__", "_dynamo", "_version", "backends", "current_device",
    "current_stream", "data_ptr", "distributed", "environ", "getenv", "grad", "grad_fn", "initial_seed",
    "is_autocast_available", "is_compiling", "is_dynamo_compiling", "is_exporting", "is_leaf", "is_scripting",
    "is_tracing", "load", "manual_seed", "mem_get_info", "memory_allocated", "memory_reserved", "memory_stats", "ops",
    "random", "requires_grad", "save", "seed", "storage", "storage_offset", "synchronize", "untyped_storage",
}  # fmt: skip
# Those that tell a tensor from a fake one, such as type and str, are not among them.
_BUILTINS = frozenset(
    {
        "len", "min", "max", "int", "float", "complex", "bool", "range", "tuple", "list", "abs", "sum", "zip",
        "enumerate", "isinstance", "all", "any", "map", "filter", "reversed", "sorted", "divmod", "round", "slice",
        "dict", "set", "pow", "iter", "next", "NotImplemented", "Ellipsis",
    }
)  # fmt: skip


class GradientRecorder:
    """Sees the gradients of the calls of one guard, and records them.

    Args:
        is_tensor: for each argument of the calls, whether it is a tensor.

    Attributes:
        tapes: pairs of a native tape, and of the names that it depends on. Numbers are those of the guard.
    """

    def __init__(self, contract: Contract, gradient: Gradient, is_tensor: Sequence[bool], calls: TrackedCalls) -> None:
        self.tapes: list[tuple[Any, tuple[Watched, ...]]] = []
        self._contract = contract
        self._gradient = gradient
        self._is_tensor = is_tensor
        self._calls = calls
        self._remaining = _GRADIENTS_BEFORE

    def see(self, values: Sequence[Any], needs: Sequence[bool], grads: Sequence[Any], found: Sequence[Any]) -> None:
        """A gradient was computed in Python: ``found``, one or None for each positional argument."""
        self._remaining = max(self._remaining - 1, 0)
        if self._remaining or not _is_repeatable_now((*values, *grads)):
            return
        if len(self.tapes) >= _MOST_OF_A_GUARD or self._gradient.recordings >= _MOST_OF_AN_OPERATOR:
            return
        self._gradient.recordings += 1
        try:
            self._record(values, needs, grads, found)
        except Exception:  # whatever it is, the gradient itself was found
            self._gradient.recordings = _MOST_OF_AN_OPERATOR
        self._remaining = _GRADIENTS_BEFORE

    def _record(self, values: Sequence[Any], needs: Sequence[bool], grads: Sequence[Any], found: Sequence[Any]) -> None:
        uses = _uses(self._contract, self._gradient)
        saved = [value for value in values if isinstance(value, torch.Tensor)]
        inputs = [each.detach() for each in (*saved, *grads)]

        def of_fakes(fakes: list[torch.Tensor]) -> Sequence[torch.Tensor | None]:
            left = iter(fakes)
            fake_values = [next(left) if isinstance(value, torch.Tensor) else value for value in values]
            return self._of_tensors(self._gradient.traceable_gradients(fake_values, needs, [*left]))

        tape = self._calls.tape_of(record(of_fakes, inputs, _MOST_OPERATIONS, uses.operators), inputs)
        again = self._calls.run_tape(tape, inputs)
        if again is None or not _same(again, self._of_tensors(found)):
            raise Unrecordable("its operations alone give something else")
        self.tapes.append((tape, uses.watched))

    def _of_tensors(self, gradients: Sequence[Any]) -> list[Any]:
        """Those of arguments that are tensors. What follows the positional arguments has none."""
        all_of_them = [*gradients, *[None] * len(self._is_tensor)]
        return [g for g, is_one in zip(all_of_them, self._is_tensor, strict=False) if is_one]


def _is_repeatable_now(arguments: Sequence[Any]) -> bool:
    """Whether nothing but the operations matters: no second derivative, no mode, no hooks that would see what is saved,
    no capture of a CUDA graph."""
    if torch.is_grad_enabled() or torch.is_anomaly_enabled() or not is_plain_call(arguments):
        return False
    if saved_tensors_hooks() is not None:
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


# -- what a gradient depends on --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Uses:
    """What the code of a gradient uses.

    Attributes:
        watched: the names that it depends on, in the form in which tracked_call.cpp compares them.
        operators: those of ours, by torch's overloads.
    """

    watched: tuple[Watched, ...]
    operators: Mapping[Any, Callable[..., Any]]


def _uses(contract: Contract, gradient: Gradient) -> _Uses:
    """What the gradient uses.

    Raises:
        Unrecordable: it may depend on more.
    """
    code = gradient.computed_by
    if isinstance(code, BackwardOperator):
        return _Uses((), _by_overload([code.operator]))
    is_reference = code is contract.function
    if is_reference and (contract.random or contract.signature.mutated or contract.signature.language != "torch"):
        raise Unrecordable("it is random, writes its arguments, or is in NumPy")
    reason = unrecordable(code, with_operators=not is_reference)
    if reason is not None:
        raise Unrecordable(reason)
    assert isinstance(code, types.FunctionType)  # else it is not recordable
    names = [
        watched
        for function in own_functions(code)
        for watched in (*loaded_globals(function), *captured(function))
        if watched.names is not vars(builtins)
    ]
    return _Uses(tuple(names), _by_overload([watched.value for watched in names if _is_operator(watched.value)]))


def _by_overload(operators: Sequence[Any]) -> dict[Any, Callable[..., Any]]:
    return {each.overload: each for each in operators if _is_pure(each.contract)}


def _is_operator(value: Any) -> bool:
    """An operator of ours: ``BaseOp``, which this file cannot import."""
    return isinstance(getattr(value, "contract", None), Contract) and hasattr(value, "overload")


def _is_pure(contract: Contract) -> bool:
    """Whether calls by position with the same arguments give the same results, and do nothing else."""
    signature = contract.signature
    return not (contract.random or signature.mutated or signature.groups or signature.keyword_only)


def unrecordable(function: Any, *, with_operators: bool = False) -> str | None:
    """What a function may depend on besides its arguments, in words; None if there is nothing. Operators of ours count
    as such, unless they can be recorded."""
    if not isinstance(function, types.FunctionType):
        return "it is no plain function"
    return next(filter(None, (_reason(each, with_operators) for each in own_functions(function))), None)


def _reason(function: types.FunctionType, with_operators: bool) -> str | None:
    state = state_of(function)
    if state is not None:
        return state
    if handles_errors(function):
        return "it handles errors, such as that of a tensor without values"
    values = {}
    for watched in (*loaded_globals(function), *captured(function)):
        if not (_is_known(watched) or (with_operators and _is_operator(watched.value))):
            return f"it uses {watched.name}"
        values[watched.name] = watched.value
    for name, attribute in attributes_of_names(function):  # a function, and an operator, may have any
        if isinstance(values[name], types.FunctionType) or _is_operator(values[name]):
            return f"it uses {name}.{attribute}"
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
