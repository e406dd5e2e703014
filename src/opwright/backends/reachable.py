"""Finds the kernels and modules that a Python launcher uses: in its globals and closure, and in helpers beside it."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

__all__ = ["names_used", "values_reached"]


def values_reached(launcher: Any) -> Iterator[Any]:
    """The values that a function uses by name, and those of functions of the same file that it calls, each once."""
    seen: set[int] = set()

    def walk(function: Any) -> Iterator[Any]:
        if id(function) in seen or not isinstance(function, types.FunctionType):
            return
        seen.add(id(function))
        held = [function.__globals__.get(name) for name in names_used(function.__code__)]
        for cell in function.__closure__ or ():
            try:
                held.append(cell.cell_contents)
            except ValueError:  # a name of an enclosing function that is not assigned yet
                continue
        for value in held:
            if isinstance(value, types.FunctionType):
                if value.__module__ == function.__module__:
                    yield from walk(value)
            elif id(value) not in seen:
                seen.add(id(value))
                yield value

    yield from walk(launcher)


def names_used(code: types.CodeType) -> Iterator[str]:
    """The global and attribute names in a function's code, inner functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_used(constant)
