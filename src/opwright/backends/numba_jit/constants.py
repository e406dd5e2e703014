"""What Numba takes for constants when it compiles a function: values of names outside of it, which may change later."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from opwright.backends.numba_jit.names_in_code import Watched, attribute_names, captured, used_globals

__all__ = ["Constants"]

# Modules whose attributes stay what they are.
_LIBRARIES = ("numpy", "math", "cmath", "numba", "operator", "builtins")


class Constants:
    """The values of what a function, and those of its file that it calls, read by name, as they are now."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._watched = [(*watched, _contents(watched.value)) for watched in _all_watched(function)]

    def are_current(self) -> bool:
        """Whether all have the same values still, and arrays the same elements."""
        for names, name, value, contents in self._watched:
            now = names.get(name) if type(names) is dict else _of_cell(names)
            if now is not value and (type(now) is not type(value) or contents is not None or not _is_equal(now, value)):
                return False
            if contents is not None and _contents(now) != contents:
                return False
        return True


def _all_watched(function: Callable[..., Any]) -> Iterator[Watched]:
    left, seen = [function], set()
    while left:
        each = left.pop()
        if not isinstance(each, types.FunctionType) or each in seen:
            continue
        seen.add(each)
        for watched in (*used_globals(each), *captured(each)):
            yield watched
            if isinstance(watched.value, types.ModuleType):
                yield from _attributes(watched.value, each)
            elif getattr(watched.value, "__module__", None) == function.__module__:
                left.append(watched.value)


def _attributes(module: types.ModuleType, function: types.FunctionType) -> Iterator[Watched]:
    if module.__name__.partition(".")[0] not in _LIBRARIES:
        for name in dict.fromkeys(attribute_names(function)):
            if name in vars(module):
                yield Watched(vars(module), name, vars(module)[name])


def _contents(value: Any) -> Any:
    """What may change in a value that stays the same object; None if nothing may."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, tuple | list):
        inner = tuple(map(_contents, value))
        return (inner, tuple(map(id, value))) if isinstance(value, list) or any(c is not None for c in inner) else None
    return None


def _is_equal(now: Any, value: Any) -> bool:
    """Whether two values that are not the same object are the same number or text."""
    return isinstance(value, int | float | complex | str | np.generic) and repr(now) == repr(value)  # -0.0 is not 0.0


def _of_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return NotImplemented
