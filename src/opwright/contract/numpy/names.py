"""Finds the NumPy functions that a function uses, and those that torch's NumPy layer lacks, before anything runs.

It reads the byte code: ``np.interp``, ``np.linalg.eig`` and names from ``from numpy import ...``, in the function and
in functions of the same file that it calls. Other uses (``x.tobytes()``, an import of NumPy inside the function) are
found by the tracer.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from opwright.internals.numpy_layer import numpy_functions

__all__ = ["NumpyName", "lacking", "names_used", "what_is_wrong", "what_to_write"]

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


@dataclass(frozen=True)
class NumpyName:
    """``np.linalg.norm`` where a function uses it. ``path`` is without the ``np``; ``where`` is ``file:line``."""

    path: str
    where: str
    function: str

    def __str__(self) -> str:
        return f"np.{self.path}"


def lacking(function: Callable[..., Any]) -> list[NumpyName]:
    """The NumPy functions that a function uses and that cannot be compiled, in order."""
    return [name for name in names_used(function) if not _has(name.path)]


def names_used(function: Callable[..., Any]) -> Iterator[NumpyName]:
    """Every use of NumPy by name in a function and in those of its file that it calls."""
    seen: set[types.CodeType] = set()

    def walk(function: types.FunctionType) -> Iterator[NumpyName]:
        visible = {**function.__globals__, **_closed_over(function)}
        codes = [function.__code__]
        while codes:
            code = codes.pop(0)
            if code in seen:
                continue
            seen.add(code)
            codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
            yield from _in_code(code, visible)
            for name in (*code.co_names, *code.co_freevars):
                helper = visible.get(name)
                if isinstance(helper, types.FunctionType) and helper.__module__ == function.__module__:
                    yield from walk(helper)

    if isinstance(function, types.FunctionType):
        yield from walk(function)


def _closed_over(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _in_code(code: types.CodeType, visible: dict[str, Any]) -> Iterator[NumpyName]:
    line = code.co_firstlineno
    held: Any = None  # the object that the last instructions have loaded
    for instruction in dis.get_instructions(code):
        if instruction.positions is not None and instruction.positions.lineno is not None:
            line = instruction.positions.lineno
        if instruction.opname in _LOADS:
            held = visible.get(instruction.argval)
            path = _path_of(held)
        elif instruction.opname in _ATTRIBUTES and isinstance(held, types.ModuleType):
            prefix = _path_of(held)
            path = None if prefix is None else f"{prefix}.{instruction.argval}".lstrip(".")
            held = getattr(held, instruction.argval, None)
        elif instruction.opname in ("CACHE", "NOP", "EXTENDED_ARG"):
            continue
        else:
            held = None
            continue
        if path is not None and not isinstance(held, types.ModuleType):
            yield NumpyName(path, f"{code.co_filename}:{line}", code.co_name)


def _path_of(value: Any) -> str | None:
    """``linalg.norm`` for ``np.linalg.norm``, "" for NumPy itself; None for other objects."""
    if isinstance(value, types.ModuleType):
        return value.__name__.removeprefix("numpy").lstrip(".") if value.__name__.split(".")[0] == "numpy" else None
    if not callable(value):
        return None
    module, name = getattr(value, "__module__", None) or "numpy", getattr(value, "__name__", "")
    for namespace, prefix in ((np, ""), (np.linalg, "linalg."), (np.fft, "fft."), (np.random, "random.")):
        if (isinstance(value, np.ufunc) or str(module).split(".")[0] == "numpy") and getattr(
            namespace, name, None
        ) is value:
            return prefix + name
    return None


def _has(path: str) -> bool:
    if path.startswith("random.") or path in OTHER_VALUES:
        return False
    if numpy_functions is None:
        return True  # no NumPy function runs on tensors then, which is reported where it is needed
    value: Any = numpy_functions
    for part in path.split("."):
        value = getattr(value, part, None)
        if value is None:
            return path == "newaxis" or _is_type(path)
    return True


def _is_type(path: str) -> bool:
    """Number types, which the layer has under other names, or refuses at the call."""
    value = getattr(np, path, None)
    return isinstance(value, type) and issubclass(value, np.generic | np.ndarray | np.dtype)


# Functions of the layer that silently give other values than NumPy's (found by the tests behind docs/numpy.md).
OTHER_VALUES = {
    "cbrt": "gives NaN for negative numbers in torch's NumPy",
    "fix": "rounds down instead of towards zero in torch's NumPy",
    "modf": "gives other parts of a number in torch's NumPy",
    "common_type": "gives a type of torch's in torch's NumPy",
}

_RANDOM = (
    "draw the numbers outside and pass them as an argument: compiled code cannot use NumPy's generators, "
    "and would draw others from torch's"
)
# Equivalents with supported functions. The tests run those that are code and compare both sides.
_INSTEAD = {
    "cbrt": "write np.sign(x) * np.abs(x) ** (1 / 3)",
    "fix": "write np.trunc(x)",
    "modf": "write x - np.trunc(x) and np.trunc(x)",
    "apply_along_axis": "write it on whole arrays, with the axis= of the functions that it calls",
    "errstate": "remove it: compiled code gives no warnings about floating-point numbers",
    "fromfunction": "call the function on np.indices(shape)",
    "interp": "find i = np.clip(np.searchsorted(xp, x), 1, len(xp) - 1), and from it "
    "fp[i - 1] + (fp[i] - fp[i - 1]) * ((np.clip(x, xp[0], xp[-1]) - xp[i - 1]) / (xp[i] - xp[i - 1]))",
    "matvec": "write A @ x[..., None] and take [..., 0]",
    "nditer": "write it on whole arrays, without a loop over elements",
    "ndenumerate": "write it on whole arrays, without a loop over elements",
    "trapezoid": "write np.sum((y[1:] + y[:-1]) / 2 * np.diff(x))",
    "vecdot": "write np.sum(np.conj(x) * y, axis=-1)",
    "vectorize": "write it on whole arrays, with np.where for its cases",
}


def what_is_wrong(path: str) -> str:
    """Why a function cannot be compiled."""
    if path.startswith("random."):
        return "draws random numbers"
    return OTHER_VALUES.get(path, "is not in torch's NumPy")


def what_to_write(path: str) -> str:
    """What to write instead of a function that cannot be compiled."""
    if path.startswith("random."):
        return _RANDOM
    return _INSTEAD.get(
        path, "write it with functions that docs/numpy.md lists as working, or call it outside and pass its result"
    )
