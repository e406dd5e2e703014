"""A digest of what a Python function does: its code, and the code and constants that it reaches.

It distinguishes an edited operator from the version in torch.compile's caches, and shows whether a worker process has
loaded the same operator as its parent. Functions with equal fingerprints may still differ in external state that they
read; functions with different fingerprints are different.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import math
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from opwright.internals.dispatch import run_with_default_keys

__all__ = ["digest", "fingerprint", "names_in_code"]

_CONSTANTS = (int, float, complex, str, bytes, bool, type(None))
_BY_REPR = (torch.dtype, torch.device, torch.Size, np.generic, np.dtype, enum.Enum, slice, range, type(...))
_FIXED = (*_CONSTANTS, *_BY_REPR, tuple, list, types.FunctionType)
# Functions of C.
_BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType)
# torch.ops.aten.relu, torch.ops.aten.relu.default, np.sin.
_BY_STR = (type(torch.ops.aten.relu), type(torch.ops.aten.relu.default), np.ufunc)
_STDLIB = sysconfig.get_paths()["stdlib"]


def digest(*parts: str) -> str:
    """A short hash of texts and their lengths, so that different lists with the same concatenation differ."""
    state = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        state.update(f"{len(encoded)}:".encode())
        state.update(encoded)
    return state.hexdigest()[:16]


def fingerprint(value: Any) -> str:
    """The digest of a function (or of anything that holds one)."""
    return digest(*_walk(value, set()))


def _walk(value: Any, seen: set[int]) -> Iterator[str]:
    if id(value) in seen:
        return
    if isinstance(value, (*_CONSTANTS, *_BY_REPR)):
        yield f"{type(value).__name__}:{value!r}"
    elif isinstance(value, tuple | list):
        seen.add(id(value))
        for item in value:
            yield from _walk(item, seen)
    elif isinstance(value, set | frozenset):
        yield from sorted(digest(*_walk(item, set())) for item in value)
    elif isinstance(value, dict):
        seen.add(id(value))
        if not all(isinstance(v, _FIXED) for v in value.values()):
            return  # most likely a cache, which fills as the program runs
        for key, item in value.items():
            yield from _walk(key, seen)
            yield from _walk(item, seen)
    elif isinstance(value, torch.Tensor | np.ndarray):
        seen.add(id(value))
        yield _constant_array(value)
    elif isinstance(value, functools.partial):
        yield from _walk((value.func, value.args, value.keywords), seen)
    elif isinstance(value, types.MethodType):
        yield from _walk((value.__func__, value.__self__), seen)
    elif isinstance(value, staticmethod | classmethod):
        yield from _walk(value.__func__, seen)
    elif isinstance(value, property):
        yield from _walk((value.fget, value.fset), seen)
    elif isinstance(value, type):
        seen.add(id(value))
        yield from _walk_class(value, seen)
    elif isinstance(value, types.CodeType):
        yield from _walk_code(value, seen)
    elif isinstance(value, types.FunctionType):
        seen.add(id(value))
        yield from _walk_function(value, seen)
    elif isinstance(getattr(value, "fn", None), types.FunctionType | types.CodeType) or hasattr(value, "fn"):
        # triton's JITFunction, Autotuner and Heuristics each wrap what they decorate as ``fn``.
        seen.add(id(value))
        yield type(value).__name__.replace("InterpretedFunction", "JITFunction")  # the same kernel, interpreted
        yield repr([str(c) for c in getattr(value, "configs", None) or ()])
        yield from _walk(getattr(value, "values", None), seen)  # the functions of triton.heuristics
        yield from _walk(value.fn, seen)
    elif isinstance(getattr(getattr(value, "contract", None), "function", None), types.FunctionType):
        # An operator or a kernel of one: by its reference. Not by its own fingerprint, which may lead back here: an
        # operator called ``relu`` reaches itself by using ``torch.relu``, as ``sin`` and ``cos`` do in their backwards.
        seen.add(id(value))
        yield from (value.contract.qualname, value.contract.schema)
        yield from _walk(value.contract.function, seen)
    elif isinstance(value, _BUILTIN):
        yield f"{getattr(value, '__module__', None)}.{value.__qualname__}"
    elif isinstance(value, _BY_STR):
        yield str(value)
    elif isinstance(getattr(value, "fingerprint", None), str):
        yield value.fingerprint
    elif not _belongs_to_a_library(type(value)):
        seen.add(id(value))
        yield from _walk(type(value), seen)
        if dataclasses.is_dataclass(value):  # another object's state may change as the program runs
            yield from _walk([getattr(value, f.name) for f in dataclasses.fields(value)], seen)


def _walk_class(value: type, seen: set[int]) -> Iterator[str]:
    yield value.__qualname__
    if not _belongs_to_a_library(value):
        for name, held in vars(value).items():
            if name not in ("__dict__", "__weakref__", "__module__", "__doc__"):
                yield name
                yield from _walk(held, seen)
        yield from _walk(value.__bases__, seen)


def _constant_array(value: Any) -> str:
    """The values of a small array on the CPU; else its type, dtype and shape."""
    kind = f"{type(value).__name__}:{value.dtype}"
    plain = isinstance(value, np.ndarray) or (type(value) is torch.Tensor and value.device.type == "cpu")
    try:
        kind += f":{tuple(value.shape)}"
        # While torch.compile traces, a mode makes fakes of all tensors, which have no values.
        values = run_with_default_keys(value.tolist) if plain and math.prod(value.shape) <= 4096 else ""
    except RuntimeError:  # a sparse, nested or quantised tensor has no list of values
        return kind
    return f"{kind}:{values}"


def _walk_code(code: types.CodeType, seen: set[int]) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr(code.co_names + code.co_varnames + code.co_freevars)
    for constant in code.co_consts:
        yield from _walk(constant, seen)


def _walk_function(function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    yield from _walk_code(function.__code__, seen)
    yield from _walk(function.__defaults__ or (), seen)
    yield from _walk(function.__kwdefaults__ or {}, seen)
    for cell in function.__closure__ or ():
        try:
            yield from _walk(cell.cell_contents, seen)
        except ValueError:  # a name of an enclosing function that is not assigned yet
            continue
    if _belongs_to_a_library(function):
        return
    for name in names_in_code(function.__code__):
        reached = function.__globals__.get(name)
        if isinstance(reached, types.ModuleType):
            for attribute in function.__code__.co_names:
                helper = vars(reached).get(attribute)
                if isinstance(helper, types.FunctionType) and not _belongs_to_a_library(helper):
                    yield from _walk(helper, seen)
        elif reached is not None:
            yield name
            yield from _walk(reached, seen)


def names_in_code(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes in a function's code, and in that of functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in_code(constant)


def _belongs_to_a_library(function: types.FunctionType | type) -> bool:
    """Libraries have versions; only the user's own code is edited between two runs."""
    module = sys.modules.get(function.__module__ or "")
    file = getattr(module, "__file__", None) or ""
    package = (function.__module__ or "").split(".")
    if package[0] in ("opwright", "kernelsim"):  # whether it is installed or not
        return "gallery" not in package
    return "site-packages" in file or file.startswith(_STDLIB) or package[0] == "torch"
