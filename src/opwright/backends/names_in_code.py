"""The names that a function in Python uses, and those of the user's own functions that it names."""

from __future__ import annotations

import builtins
import dis
import itertools
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

__all__ = [
    "LIBRARIES", "Watched", "all_names", "attribute_names", "attributes_of_names", "captured", "changeable_default",
    "handles_errors", "is_as_it_was", "is_constant", "loaded_globals", "own_functions", "state_of", "used_globals",
    "with_inner_codes",
]  # fmt: skip

# Modules whose functions are no user's.
LIBRARIES = ("torch", "triton", "math", "opwright")
_CONSTANTS = (
    int, float, complex, bool, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device, torch.memory_format,
)  # fmt: skip
# Instructions that write what is not the function's own.
_WRITES = frozenset(
    {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "IMPORT_NAME", "YIELD_VALUE", "STORE_DEREF"}
)


_LOADS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_LOADS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"})
_LOADS_NAME = _LOADS_GLOBAL | {"LOAD_DEREF"}


class Watched(NamedTuple):
    """A name with its value: in a module, or (where ``names`` is a cell) of an enclosing function."""

    names: Any
    name: str
    value: Any


def is_as_it_was(watched: Watched) -> bool:
    """Whether the name still has its value."""
    names, name, value = watched
    if isinstance(names, dict):
        return names.get(name) is value
    return names.cell_contents is value


def own_functions(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """The function, and the user's own functions that it names."""
    seen: dict[int, types.FunctionType] = {}
    left = [function]
    while left:
        function = left.pop()
        if id(function) in seen:
            continue
        seen[id(function)] = function
        yield function
        for watched in (*used_globals(function), *captured(function)):
            value = watched.value
            if isinstance(value, types.FunctionType) and not _is_of_a_library(value):
                left.append(value)


def _is_of_a_library(function: types.FunctionType) -> bool:
    module: str | None = function.__module__  # None in a namespace without a name, as exec takes it
    return (module or "").partition(".")[0] in LIBRARIES


def used_globals(function: types.FunctionType) -> Iterator[Watched]:
    """The names of its module that it uses; also those of which it uses an attribute of the same name."""
    for name in dict.fromkeys(all_names(function.__code__)):
        if name in function.__globals__:
            yield Watched(function.__globals__, name, function.__globals__[name])


def loaded_globals(function: types.FunctionType) -> Iterator[Watched]:
    """The names of its module, and builtins, that it loads as such."""
    for name in dict.fromkeys(_argument_names(function, _LOADS_GLOBAL)):
        if name in function.__globals__:
            yield Watched(function.__globals__, name, function.__globals__[name])
        else:
            yield Watched(vars(builtins), name, vars(builtins).get(name))


def attribute_names(function: types.FunctionType) -> Iterator[str]:
    """The names of attributes and methods that it reads."""
    return _argument_names(function, _LOADS_ATTRIBUTE)


def attributes_of_names(function: types.FunctionType) -> Iterator[tuple[str, str]]:
    """Pairs of a name that is not the function's own, and an attribute of its value that it reads."""
    for before, instruction in _pairs_of_instructions(function):
        if before.opname in _LOADS_NAME and instruction.opname in _LOADS_ATTRIBUTE:
            yield before.argval, instruction.argval


def handles_errors(function: types.FunctionType) -> bool:
    """Whether it does something where an error is raised, except to leave a ``with``."""
    pairs = _pairs_of_instructions(function)
    return any(one.opname == "PUSH_EXC_INFO" and next_.opname != "WITH_EXCEPT_START" for one, next_ in pairs)


def _pairs_of_instructions(function: types.FunctionType) -> Iterator[tuple[dis.Instruction, dis.Instruction]]:
    for code in with_inner_codes(function.__code__):
        yield from itertools.pairwise(i for i in dis.get_instructions(code) if i.opname != "EXTENDED_ARG")


def _argument_names(function: types.FunctionType, instructions: frozenset[str]) -> Iterator[str]:
    for code in with_inner_codes(function.__code__):
        for instruction in dis.get_instructions(code):
            if instruction.opname in instructions:
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


def all_names(code: types.CodeType) -> Iterator[str]:
    """Names of globals, builtins and attributes."""
    for each in with_inner_codes(code):
        yield from each.co_names


def is_constant(value: Any) -> bool:
    """Whether a value stays what it is."""
    return all(map(is_constant, value)) if type(value) is tuple else isinstance(value, _CONSTANTS)


def state_of(function: types.FunctionType) -> str | None:
    """What the function keeps from call to call, or writes, in words; None if there is nothing."""
    if changeable_default(function):
        return "a default of it can be changed"
    written = _written_name(function)
    return None if written is None else f"it writes {written}"


def changeable_default(function: types.FunctionType) -> bool:
    """Whether an argument has a default that may change, such as a list."""
    return not all(map(is_constant, (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())))


def _written_name(function: types.FunctionType) -> str | None:
    """A name that the function writes, and that is not its own; None if there is none."""
    for code in with_inner_codes(function.__code__):
        for instruction in dis.get_instructions(code):
            if instruction.opname in _WRITES and not _is_own(instruction, code):
                return str(instruction.argval)
    return None


def _is_own(instruction: dis.Instruction, code: types.CodeType) -> bool:
    """A local variable that an inner function reads."""
    return instruction.opname == "STORE_DEREF" and instruction.argval in code.co_cellvars
