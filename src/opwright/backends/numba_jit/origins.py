"""Which numbers of a function are Python's in NumPy, and which are NumPy's; Numba has int64 and float64 for both."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numba import types
from numba.core import ir
from numba.core.compiler import run_frontend
from numba.core.dispatcher import Dispatcher
from numba.core.ir_utils import build_definitions

__all__ = ["ANY_NUMBER", "NEW_ARRAYS", "REDUCTIONS", "Origin", "Origins"]


class Origin(enum.Enum):
    """Where a number of Numba comes from in NumPy."""

    PYTHON = "a Python number"
    ARGUMENT = "an argument"  # a Python integer if it has 64 bits; a float of either
    NUMPY = "a number of NumPy"
    UNKNOWN = "either"


# What they do with an integer does not depend on its width.
ANY_NUMBER = (range, slice, len, bool, print, int, float, complex, isinstance, tuple, enumerate, zip)
_PYTHONS = frozenset({len, int, float, complex, bool, round, range})
_GIVE_ARGUMENTS = frozenset({abs, max, min})
# Functions whose numbers are NumPy's. (Others, such as np.ndim, give Python's.)
REDUCTIONS: frozenset[Any] = frozenset(
    {np.sum, np.prod, np.mean, np.std, np.var, np.min, np.max, np.argmin, np.argmax, np.dot, np.vdot, np.median,
     np.trace, np.linalg.norm, np.linalg.det}
)  # fmt: skip
_COUNTS = frozenset({"shape", "size", "ndim", "itemsize", "nbytes"})
_PASSED_ON = frozenset({"iternext", "pair_first", "cast"})
NEW_ARRAYS: frozenset[Any] = frozenset(
    {np.empty, np.zeros, np.ones, np.full, np.empty_like, np.zeros_like, np.ones_like, np.full_like, np.arange,
     np.linspace, np.eye}
)  # fmt: skip


class Origins:
    """The origins of the variables of a function in Numba's form.

    Args:
        types_of: the types of variables, once they are known; then an array's elements are numbers of NumPy.
    """

    def __init__(self, function: ir.FunctionIR, is_helper: bool, types_of: Mapping[str, Any] | None = None) -> None:
        self._function = function
        self._types: Mapping[str, Any] = types_of or {}
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
            return _of_operation(self._of.get(expression.lhs.name), self._of.get(expression.rhs.name))
        if expression.op in _PASSED_ON or expression.op == "unary":
            return self._of.get(expression.value.name)
        if expression.op in ("getiter", "exhaust_iter"):  # of an array, elements come; of a range or a shape, integers
            of = self._of.get(expression.value.name)
            if self._is_array(expression.value):
                return Origin.NUMPY
            is_python = self.is_shape(expression.value) if expression.op == "exhaust_iter" else of is Origin.PYTHON
            return None if of is None else Origin.PYTHON if is_python else Origin.UNKNOWN
        if expression.op == "phi":
            return _common(self._of.get(v.name) for v in expression.incoming_values if isinstance(v, ir.Var))
        if expression.op == "getattr" and expression.attr in _COUNTS:
            return Origin.PYTHON
        if expression.op in ("getitem", "static_getitem"):
            is_numpys = self._is_array(expression.value)
            return Origin.NUMPY if is_numpys else Origin.PYTHON if self.is_shape(expression.value) else Origin.UNKNOWN
        if expression.op == "call":
            return self._of_call(expression)
        return Origin.UNKNOWN

    def _of_call(self, call: ir.Expr) -> Origin | None:
        function = self.value_of(call.func)
        if _is_one_of(function, _GIVE_ARGUMENTS):
            return _common(self._of.get(v.name) for v in call.args)
        if isinstance(function, Dispatcher):
            return _of_results(function.py_func)
        if isinstance(function, np.ufunc) or _is_one_of(function, REDUCTIONS) or _is_class_of_numpy(function):
            return Origin.NUMPY
        is_python = _is_one_of(function, _PYTHONS) or getattr(function, "__module__", "") == math.__name__
        return Origin.PYTHON if is_python else Origin.UNKNOWN

    def _is_array(self, variable: ir.Var) -> bool:
        return isinstance(self._types.get(variable.name), types.Array)

    def is_shape(self, variable: ir.Var) -> bool:
        """Whether it is surely the shape of an array."""
        values = self._function._definitions.get(variable.name, [])
        return bool(values) and all(
            isinstance(v, ir.Expr) and ((v.op == "getattr" and v.attr == "shape")
                                        or (v.op == "exhaust_iter" and self.is_shape(v.value)))
            for v in values
        )  # fmt: skip

    def is_argument(self, variable: ir.Var) -> bool:
        """Whether it is surely an argument, as it came."""
        values = self._function._definitions.get(variable.name, [])
        return bool(values) and all(
            isinstance(v, ir.Arg) or (isinstance(v, ir.Var) and self.is_argument(v)) for v in values
        )

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


def _of_operation(left: Origin | None, right: Origin | None) -> Origin | None:
    """The origin of a result: a number of NumPy decides."""
    for decisive in (Origin.NUMPY, Origin.UNKNOWN):
        if decisive in (left, right):
            return decisive
    return _common(iter((left, right)))


def _of_constant(value: Any) -> Origin:
    if isinstance(value, np.generic | np.ndarray):
        return Origin.NUMPY
    return Origin.PYTHON if isinstance(value, int | float | complex) else Origin.UNKNOWN


def _is_class_of_numpy(function: Any) -> bool:
    return isinstance(function, type) and issubclass(function, np.generic)


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
