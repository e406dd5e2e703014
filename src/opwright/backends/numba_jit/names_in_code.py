"""The names that a function in Python uses."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["Watched", "attribute_names", "captured", "used_globals", "with_inner_codes"]

_LOADS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"})


class Watched(NamedTuple):
    """A name with its value: in a module, or (where ``names`` is a cell) of an enclosing function."""

    names: Any
    name: str
    value: Any


def used_globals(function: types.FunctionType) -> Iterator[Watched]:
    """The names of its module that it uses; also those of which it uses an attribute of the same name."""
    for name in dict.fromkeys(name for code in with_inner_codes(function.__code__) for name in code.co_names):
        if name in function.__globals__:
            yield Watched(function.__globals__, name, function.__globals__[name])


def attribute_names(function: types.FunctionType) -> Iterator[str]:
    """The names of attributes and methods that it reads."""
    for code in with_inner_codes(function.__code__):
        for instruction in dis.get_instructions(code):
            if instruction.opname in _LOADS_ATTRIBUTE:
                yield instruction.argval


def captured(function: types.FunctionType) -> Iterator[Watched]:
    """The variables of enclosing functions that it uses."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield Watched(cell, name, cell.cell_contents)
        except ValueError:  # not assigned yet
            yield Watched(cell, name, NotImplemented)


def with_inner_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code, and that of functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from with_inner_codes(constant)
