"""Which integers of a function are Python's in NumPy, and which are numbers of NumPy; Numba has int64 for both."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba.core import ir
from numba.core.compiler import run_frontend
from numba.core.dispatcher import Dispatcher
from numba.core.ir_utils import build_definitions

__all__ = ["NEW_ARRAYS", "Origin", "Origins"]


class Origin(enum.Enum):
    """Where an integer of Numba comes from in NumPy."""

    PYTHON = "a Python integer"
    ARGUMENT = "an argument"  # a Python integer if it has 64 bits
    NUMPY = "a number of NumPy"
    UNKNOWN = "either"


_KNOWN_CALLS = {len: Origin.PYTHON, int: Origin.PYTHON, range: Origin.PYTHON}
_COUNTS = frozenset({"shape", "size", "ndim", "itemsize", "nbytes"})
_PASSED_ON = frozenset({"iternext", "pair_first", "cast"})
NEW_ARRAYS: frozenset[Any] = frozenset(
    {np.empty, np.zeros, np.ones, np.full, np.empty_like, np.zeros_like, np.ones_like, np.full_like, np.arange,
     np.linspace, np.eye}
)  # fmt: skip


class Origins:
    """The origins of the variables of a function in Numba's form, before its types are known."""

    def __init__(self, function: ir.FunctionIR, is_helper: bool) -> None:
        self._function = function
        self._argument = Origin.UNKNOWN if is_helper else Origin.ARGUMENT
        self._of: dict[str, Origin | None] = {}
        definitions = function._definitions
        changed = True
        while changed:  # what loops feed back into a variable is known after the first round
            changed = False
            for name in definitions:
                found = _common(self._of_value(value) for value in definitions[name])
                changed |= found is not self._of.get(name)
                self._of[name] = found

    def of(self, variable: ir.Var) -> Origin:
        """The origin of a variable's value."""
        return self._of.get(variable.name) or Origin.UNKNOWN

    def all(self) -> dict[str, Origin]:
        """The origin of each variable."""
        return {name: origin or Origin.UNKNOWN for name, origin in self._of.items()}

    def _of_value(self, value: Any) -> Origin | None:
        """The origin of a value; None if what it depends on was not looked at yet."""
        if isinstance(value, ir.Var):
            return self._of.get(value.name)
        if isinstance(value, ir.Arg):
            return self._argument
        if isinstance(value, ir.Const | ir.Global | ir.FreeVar):
            return _of_constant(value.value)
        if isinstance(value, ir.Expr):
            return self._of_expression(value)
        return Origin.UNKNOWN

    def _of_expression(self, expression: ir.Expr) -> Origin | None:
        if expression.op in ("binop", "inplace_binop"):
            return _common(self._of.get(v.name) for v in (expression.lhs, expression.rhs))
        if expression.op in _PASSED_ON or expression.op == "unary":
            return self._of.get(expression.value.name)
        if expression.op in ("getiter", "exhaust_iter"):  # of an array, elements come; of a range or a shape, integers
            of = self._of.get(expression.value.name)
            is_python = self._is_shape(expression.value) if expression.op == "exhaust_iter" else of is Origin.PYTHON
            return None if of is None else Origin.PYTHON if is_python else Origin.UNKNOWN
        if expression.op == "phi":
            return _common(self._of.get(v.name) for v in expression.incoming_values if isinstance(v, ir.Var))
        if expression.op == "getattr" and expression.attr in _COUNTS:
            return Origin.PYTHON
        if expression.op in ("getitem", "static_getitem"):
            return Origin.PYTHON if self._is_shape(expression.value) else Origin.UNKNOWN
        if expression.op == "call":
            return _of_call(self.value_of(expression.func))
        return Origin.UNKNOWN

    def _is_shape(self, variable: ir.Var) -> bool:
        values = self._function._definitions.get(variable.name, [])
        return bool(values) and all(
            isinstance(v, ir.Expr) and ((v.op == "getattr" and v.attr == "shape")
                                        or (v.op == "exhaust_iter" and self._is_shape(v.value)))
            for v in values
        )  # fmt: skip

    def value_of(self, variable: ir.Var) -> Any:
        """The function, module or constant that a name stands for; None if it is not known."""
        values = self._function._definitions.get(variable.name, [])
        if len(values) != 1:
            return None
        (value,) = values
        if isinstance(value, ir.Global | ir.FreeVar | ir.Const):
            return value.value
        if isinstance(value, ir.Var):
            return self.value_of(value)
        if isinstance(value, ir.Expr) and value.op == "getattr":
            return getattr(self.value_of(value.value), value.attr, None)
        return None

    def is_new(self, variable: ir.Var) -> bool:
        """Whether it is surely an array that this function has made, or a part of one."""
        values = self._function._definitions.get(variable.name, [])
        return bool(values) and all(map(self._is_new_value, values))

    def _is_new_value(self, value: Any) -> bool:
        if isinstance(value, ir.Var):
            return self.is_new(value)
        if not isinstance(value, ir.Expr):
            return isinstance(value, ir.Const)
        if value.op in ("getitem", "static_getitem"):
            return self.is_new(value.value)
        return value.op == "call" and _is_one_of(self.value_of(value.func), NEW_ARRAYS)


def _is_one_of(value: Any, functions: frozenset[Any]) -> bool:
    return any(value is function for function in functions)


def _common(origins: Iterator[Origin | None]) -> Origin | None:
    found = set(origins) - {None}
    if found == {Origin.ARGUMENT, Origin.PYTHON}:
        return Origin.ARGUMENT
    return found.pop() if len(found) == 1 else Origin.UNKNOWN if found else None


def _of_constant(value: Any) -> Origin:
    if isinstance(value, np.generic | np.ndarray):
        return Origin.NUMPY
    return Origin.PYTHON if isinstance(value, int) else Origin.UNKNOWN


def _of_call(function: Any) -> Origin:
    if isinstance(function, Dispatcher):
        return _of_results(function.py_func)
    if isinstance(function, type) and issubclass(function, np.generic):
        return Origin.NUMPY
    return next((origin for known, origin in _KNOWN_CALLS.items() if function is known), Origin.UNKNOWN)


@functools.lru_cache(maxsize=256)
def _of_results(function: Callable[..., Any]) -> Origin:
    """The origin of what a function returns."""
    translated = run_frontend(function)
    translated._definitions = build_definitions(translated.blocks)
    origins = Origins(translated, is_helper=True)
    returned = [
        statement.value
        for block in translated.blocks.values()
        for statement in block.body
        if isinstance(statement, ir.Return)
    ]
    return _common(origins.of(variable) for variable in returned) or Origin.UNKNOWN
