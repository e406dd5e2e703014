"""A digest of what a Python function does: its code, and the code and constants that it reaches.

Used to tell an edited operator from the one that torch.compile's caches saw, and to tell whether a
worker process loaded the very operator that its parent holds. Two functions with equal fingerprints
may still differ in what they read from the outside world; two that differ are different.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

__all__ = ["digest", "fingerprint"]

_CONSTANTS = (int, float, complex, str, bytes, bool, type(None))
_STDLIB = sysconfig.get_paths()["stdlib"]


def digest(*parts: str) -> str:
    """A short hash of some texts, with their lengths, so that no two lists of parts collide by gluing."""
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
    if isinstance(value, _CONSTANTS):
        yield f"{type(value).__name__}:{value!r}"
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _walk(item, seen)
    elif isinstance(value, types.CodeType):
        yield from _walk_code(value, seen)
    elif isinstance(value, types.FunctionType):
        seen.add(id(value))
        yield from _walk_function(value, seen)
    elif isinstance(getattr(value, "fn", None), types.FunctionType | types.CodeType) or hasattr(value, "fn"):
        # triton's JITFunction, Autotuner and Heuristics each wrap what they decorate as ``fn``.
        seen.add(id(value))
        yield type(value).__name__
        for name in ("configs", "values"):
            yield repr([str(c) for c in getattr(value, name, None) or ()])
        yield from _walk(value.fn, seen)
    elif isinstance(getattr(value, "fingerprint", None), str):
        yield value.fingerprint  # another operator


def _walk_code(code: types.CodeType, seen: set[int]) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr(code.co_names + code.co_varnames + code.co_freevars)
    for constant in code.co_consts:
        yield from _walk(constant, seen)


def _walk_function(function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    yield from _walk_code(function.__code__, seen)
    yield from _walk(function.__defaults__ or (), seen)
    for cell in function.__closure__ or ():
        try:
            yield from _walk(cell.cell_contents, seen)
        except ValueError:  # a name of an enclosing function that is not assigned yet
            continue
    if _belongs_to_a_library(function):
        return
    for name in _global_names(function.__code__):
        reached = function.__globals__.get(name)
        if isinstance(reached, types.ModuleType):
            for attribute in function.__code__.co_names:
                helper = vars(reached).get(attribute)
                if isinstance(helper, types.FunctionType) and not _belongs_to_a_library(helper):
                    yield from _walk(helper, seen)
        elif reached is not None:
            yield name
            yield from _walk(reached, seen)


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _belongs_to_a_library(function: types.FunctionType) -> bool:
    """Libraries have versions; only the user's own code is edited between two runs."""
    module = sys.modules.get(function.__module__ or "")
    file = getattr(module, "__file__", None) or ""
    return "site-packages" in file or file.startswith(_STDLIB) or function.__module__.split(".")[0] == "torch"
