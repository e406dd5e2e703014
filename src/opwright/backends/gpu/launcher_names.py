"""The names that a launcher in Python uses: whether its calls may depend on more than their arguments."""

from __future__ import annotations

import builtins
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from opwright.backends.names_in_code import (
    LIBRARIES,
    Watched,
    all_names,
    captured,
    is_constant,
    own_functions,
    state_of,
    used_globals,
)

__all__ = ["unrecordable", "watched_names"]

# What may be called by name, or asked of a tensor or of a module: it reads metadata, allocates, takes views, or is
# noticed as an operation when it runs. Streams, synchronisation, random numbers and times are not among it.
_HARMLESS = frozenset(
    {
        "shape", "dtype", "device", "ndim", "is_cuda", "itemsize", "size", "stride", "numel", "nelement", "dim",
        "is_contiguous", "element_size", "storage_offset", "is_floating_point", "is_complex", "contiguous",
        "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "view", "reshape", "flatten",
        "unflatten", "t", "T", "mT", "transpose", "permute", "unsqueeze", "squeeze", "select", "narrow", "expand",
        "cdiv", "next_power_of_2", "append", "extend", "prod", "get_device_properties", "multi_processor_count", "cuda",
        "float16", "bfloat16", "float32", "float64", "half", "float", "double", "int8", "int16", "int32", "int64",
        "uint8", "bool", "constexpr", "math", "ceil", "floor", "log2", "sqrt", "finfo", "iinfo", "min", "max", "get",
        "Tensor", "int1", "language", "runtime", "contiguous_format", "dtypes", "jit", "name", "forall",
        "launches_are_ours",
    }
)  # fmt: skip
_BUILTINS = frozenset(
    {
        "len", "min", "max", "int", "float", "bool", "range", "tuple", "list", "abs", "sum", "zip", "enumerate",
        "isinstance", "all", "any", "map", "reversed", "sorted", "divmod", "round", "slice", "dict", "str",
        "ValueError", "TypeError", "RuntimeError", "AssertionError", "NotImplementedError",
    }
)  # fmt: skip


def watched_names(launcher: Any) -> Sequence[Watched]:
    """The names whose values a recorded call depends on, besides those of modules."""
    return [w for w in _names(launcher) if not isinstance(w.value, types.ModuleType)]


def unrecordable(launcher: Any) -> str | None:
    """What a launcher may depend on besides metadata of its arguments, in words; None if there is nothing."""
    if not isinstance(launcher, types.FunctionType):
        return "it is no plain function"
    for function in own_functions(launcher):
        reason = _reason(function)
        if reason is not None:
            return reason
    return None


def _reason(function: types.FunctionType) -> str | None:
    state = state_of(function)
    if state is not None:
        return state
    for name in all_names(function.__code__):
        if name in function.__globals__:
            if not _is_known(function.__globals__[name]):
                return f"it uses {name}"
        elif name not in _HARMLESS and not (name in _BUILTINS and hasattr(builtins, name)):
            return f"it uses {name}"
    for watched in captured(function):
        if not _is_known(watched.value):
            return f"it uses {watched.name}"
    return None


def _is_known(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] in LIBRARIES
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
        module = (value.__module__ or "").partition(".")[0]
        return isinstance(value, types.FunctionType) if module not in LIBRARIES else value.__name__ in _HARMLESS
    if isinstance(value, type):
        return value is torch.Tensor or value.__module__ == "builtins"
    return is_constant(value) or _is_cuda(value) or (is_triton_kernel(value) and _has_no_hooks(value))


def _is_cuda(value: Any) -> bool:
    return type(value).__module__ in ("opwright.backends.cuda.module", "numba.cuda.dispatcher")


def is_triton_kernel(value: Any) -> bool:
    return type(value).__module__.startswith("triton.runtime") and hasattr(value, "fn")


def _has_no_hooks(kernel: Any) -> bool:
    """Whether a Triton kernel runs no function of the user when it is launched, but for those of ``heuristics``."""
    while is_triton_kernel(kernel):
        kind = type(kernel).__name__
        if kind not in ("JITFunction", "Autotuner", "Heuristics") or getattr(kernel, "pre_run_hooks", None):
            return False
        if any(getattr(c, "pre_hook", None) is not None for c in getattr(kernel, "configs", ())):
            return False
        if getattr(kernel, "user_defined_pre_hook", False) or getattr(kernel, "user_defined_post_hook", False):
            return False
        if kind == "Heuristics" and any(unrecordable(f) is not None for f in kernel.values.values()):
            return False
        kernel = kernel.fn
    return True


def _names(launcher: types.FunctionType) -> Iterator[Watched]:
    for function in own_functions(launcher):
        for watched in (*used_globals(function), *captured(function)):
            yield watched
            kernel = watched.value
            while is_triton_kernel(kernel):
                # Triton itself compares the globals that a kernel has used, and raises if one has changed.
                for (name, _), (_, names) in getattr(kernel, "used_global_vals", {}).items():
                    yield Watched(names, name, names.get(name))
                kernel = kernel.fn
