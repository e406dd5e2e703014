"""What the code of a function may depend on besides its arguments: found in its bytecode, or not known.

Recorded code is repeated without being run. That is right only if all that it depends on is known: so this file lists
the instructions, names and values that are known to be harmless, and refuses every other. What a name stands for may
change later, also in place: each name is therefore returned with its value, and a recording compares all of them before
each repetition (``templates/unchanged.h``).

Watched are names of modules and builtins, cells, attributes of modules and classes, and the fields of functions
(``__code__``, which IPython's autoreload replaces, ``__defaults__``, ``__kwdefaults__``, ``__closure__``).
"""

from __future__ import annotations

import builtins
import dis
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from opwright.backends.instructions import OF_OWN_VARIABLES
from opwright.backends.native.extension import TESTED_PYTHONS
from opwright.fast_path.extension import Watched

__all__ = ["ABSENT", "Known", "UnknownCode", "is_constant", "members_of", "watched_fields", "watched_names"]

# Stands for a name that has no value; the extension knows it, too.
ABSENT = NotImplemented
_INTRINSICS = frozenset({"INTRINSIC_LIST_TO_TUPLE", "INTRINSIC_UNARY_POSITIVE"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_CONSTANTS = (
    int, float, complex, bool, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device, torch.memory_format,
)  # fmt: skip
_FIELDS = ("__code__", "__defaults__", "__kwdefaults__", "__closure__")


class UnknownCode(Exception):
    """Why nothing is known of what a function depends on."""


@dataclass(frozen=True)
class Known:
    """What code of one kind may use.

    Attributes:
        functions: functions and classes of libraries by their ids: the objects that were imported at start.
        builtins: by name, with the objects of the start.
        holder: the class in which attributes are looked up that are no module's.
        attributes: their names, each with what it was in the class at start, or None for an attribute of what cannot
            change.
        accepts: returns what else to watch for another value that code may name; None refuses the value.
    """

    functions: Mapping[int, Any]
    builtins: Mapping[str, Any]
    holder: type
    attributes: Mapping[str, Any]
    accepts: Callable[[Any], Iterable[Watched] | None] = lambda value: None


def is_constant(value: Any) -> bool:
    """Whether a value stays what it is: of one of the types that cannot change, and of no subclass of them."""
    return all(map(is_constant, value)) if type(value) is tuple else type(value) in _CONSTANTS


def members_of(holder: Any, names: Iterable[str]) -> dict[int, Any]:
    """The members of a module that it has, by their ids."""
    found = [vars(holder)[name] for name in names if name in vars(holder)]
    return {id(member): member for member in found}


def watched_fields(function: Any) -> Iterator[Watched]:
    """What can be replaced in a function that stays the same object."""
    yield from ((function, field, getattr(function, field)) for field in _FIELDS)


def watched_names(function: Any, known: Known) -> tuple[Watched, ...]:
    """All that a function in Python depends on besides its arguments, and the functions that it calls.

    Raises:
        UnknownCode: it may depend on more, or does more than to compute a result.
    """
    if sys.version_info[:2] not in TESTED_PYTHONS:
        raise UnknownCode(f"the instructions of Python {sys.version_info[0]}.{sys.version_info[1]} are not known")
    found: dict[tuple[int, str], Watched] = {}
    for watched in _Reader(known).of_function(function):
        earlier = found.setdefault((id(watched[0]), watched[1]), watched)
        if earlier[2] is not watched[2]:
            raise UnknownCode(f"{watched[1]} changes while it is read")
    return tuple(found.values())


class _Reader:
    """Reads functions, each once."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._seen: dict[int, types.FunctionType] = {}

    def of_function(self, function: Any) -> Iterator[Watched]:
        if type(function) is not types.FunctionType:
            raise UnknownCode(f"{function!r} is not a plain function")
        if id(function) in self._seen:
            return
        self._seen[id(function)] = function
        if getattr(function, "__builtins__", None) is not vars(builtins):
            raise UnknownCode(f"{function.__name__} has builtins of its own")
        yield from watched_fields(function)
        yield from self._of_defaults(function)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for code in _with_inner(function.__code__):
            yield from self._of_code(code, function.__globals__, cells)

    def _of_defaults(self, function: types.FunctionType) -> Iterator[Watched]:
        by_keyword = function.__kwdefaults__ or {}
        if not all(map(is_constant, (*(function.__defaults__ or ()), *by_keyword.values()))):
            raise UnknownCode(f"a default of {function.__name__} can be changed")
        yield from ((by_keyword, name, value) for name, value in by_keyword.items())

    def _of_code(self, code: types.CodeType, names: dict[str, Any], cells: Mapping[str, Any]) -> Iterator[Watched]:
        if code.co_flags & (0x20 | 0x80 | 0x200):  # a generator or a coroutine
            raise UnknownCode(f"{code.co_name} is not a plain function")
        instructions = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE")]
        position = 0
        while position < len(instructions):
            instruction = instructions[position]
            self._require_known(instruction, code)
            position += 1
            if instruction.opname == "LOAD_GLOBAL":
                yield from (found := list(self._of_global(instruction.argval, names)))
                value = found[-1][2]
            elif instruction.opname == "LOAD_DEREF" and instruction.argval in cells:
                value = _contents(cells[instruction.argval])
                yield cells[instruction.argval], instruction.argval, value
            elif instruction.opname in _ATTRIBUTES:
                yield from self._of_attribute(instruction.argval)
                continue
            else:
                continue
            loaded = instruction.argval
            while isinstance(value, types.ModuleType):
                if position == len(instructions) or instructions[position].opname not in _ATTRIBUTES:
                    raise UnknownCode(f"it uses the module {value.__name__}")
                name = instructions[position].argval
                value, holder = vars(value).get(name, ABSENT), vars(value)
                yield holder, name, value
                loaded = name
                position += 1
            follows = instructions[position] if position < len(instructions) else None
            yield from self._of_value(
                value, loaded, _is_called(instruction, instructions[position - 1], follows), follows
            )

    def _require_known(self, instruction: dis.Instruction, code: types.CodeType) -> None:
        name, value = instruction.opname, instruction.argval
        if name not in OF_OWN_VARIABLES:
            raise UnknownCode(f"it does {name}" + (f" ({value})" if isinstance(value, str) else ""))
        if name == "CALL_INTRINSIC_1" and instruction.argrepr not in _INTRINSICS:
            raise UnknownCode(f"it does {instruction.argrepr}")
        if name == "STORE_DEREF" and value not in code.co_cellvars:
            raise UnknownCode(f"it writes {value}")
        if name in _ATTRIBUTES and value not in self._known.attributes:
            raise UnknownCode(f"it uses {value}")

    def _of_attribute(self, name: str) -> Iterator[Watched]:
        expected = self._known.attributes[name]
        if expected is None:
            return
        if inspect.getattr_static(self._known.holder, name, ABSENT) is not expected:
            raise UnknownCode(f"{self._known.holder.__name__}.{name} was replaced")
        yield self._known.holder, name, expected

    def _of_global(self, name: str, names: dict[str, Any]) -> Iterator[Watched]:
        if name in names:
            yield names, name, names[name]
            return
        yield names, name, ABSENT  # nothing shadows the builtin
        value = vars(builtins).get(name, ABSENT)
        if self._known.builtins.get(name, ABSENT) is not value or value is ABSENT:
            raise UnknownCode(f"it uses {name}")
        yield vars(builtins), name, value

    def _of_value(self, value: Any, name: str, is_called: bool, follows: dis.Instruction | None) -> Iterator[Watched]:
        if is_constant(value) or self._known.builtins.get(getattr(value, "__name__", "")) is value:
            return
        reads_attribute = follows is not None and follows.opname in _ATTRIBUTES
        if not reads_attribute and self._known.functions.get(id(value)) is value:
            return
        if type(value) is types.FunctionType:
            if reads_attribute or not is_called:
                raise UnknownCode(f"it uses the function {value.__name__} without calling it")
            yield from self.of_function(value)
            return
        more = None if reads_attribute or _is_kept(follows) else self._known.accepts(value)
        if more is None:
            raise UnknownCode(f"it uses {name}")
        yield from more


def _is_called(first: dis.Instruction, last: dis.Instruction, follows: dis.Instruction | None) -> bool:
    """Whether what is loaded is what a call calls: Python marks it with a NULL on the stack, or loads it as a method.

    Args:
        first, last: those that load a name, and the last attribute of a module.
    """
    is_method = last.opname == "LOAD_METHOD" or "NULL" in last.argrepr or "NULL" in first.argrepr
    return is_method or (follows is not None and follows.opname == "PUSH_NULL")


def _is_kept(follows: dis.Instruction | None) -> bool:
    """Whether what was loaded gets another name, under which its attributes could be read."""
    return follows is not None and follows.opname in ("STORE_FAST", "STORE_DEREF", "RETURN_VALUE")


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        raise UnknownCode("it uses a variable that has no value yet") from None


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)
