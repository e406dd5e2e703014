"""Where a function, as Numba has typed it, gives other numbers than Python and NumPy."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numba import types
from numba.core import ir
from numba.np.numpy_support import as_dtype, from_dtype

from opwright.backends.numba_jit.analysis import Analysis
from opwright.backends.numba_jit.integers import (
    IN_PLACE,
    POWERS,
    SHIFTS,
    TRUTH_VALUES,
    UFUNCS,
    element,
    is_concerned,
    is_narrow,
    is_python,
    is_special_power,
    is_unclear,
    may_divide_by_minus_one,
    store_may_differ,
)
from opwright.backends.numba_jit.mixed import Mixed
from opwright.backends.numba_jit.numpy_functions import numpys_call_may_differ, numpys_own, refuses_powers
from opwright.backends.numba_jit.origins import ANY_NUMBER, Origin
from opwright.backends.numba_jit.python_numbers import DIVISIONS, call_may_differ, may_differ
from opwright.backends.numba_jit.refusals import note_mixture

__all__ = ["Examined"]

# Modules whose functions replace others, and follow NumPy's rules.
_OURS = frozenset({may_differ.__module__, is_narrow.__module__})


class Examined:
    """One function with its types."""

    def __init__(
        self,
        types_of: Mapping[str, Any],
        analysis: Analysis,
        returned: Any,
        mixed: Mixed,
        *,
        is_replaced: bool,
        stops_at_integers: bool,
    ) -> None:
        self._types = types_of
        self._mixed = mixed
        self._stops_at_integers = stops_at_integers
        self._analysis = analysis
        self._returned = returned
        self._is_replaced = is_replaced

    def reason(self, statement: Any) -> str:
        """Why a statement gives another number than Python and NumPy, "" if it does not."""
        if isinstance(statement, ir.SetItem | ir.StaticSetItem):
            return self._of_store(statement)
        if not isinstance(statement, ir.Assign):
            return ""
        value, target = statement.value, self._types[statement.target.name]
        if isinstance(value, ir.Var):
            return self._merged([value], target)
        if not isinstance(value, ir.Expr):
            return ""
        if value.op == "phi":
            return self._merged([v for v in value.incoming_values if isinstance(v, ir.Var)], target)
        if value.op == "cast":
            return self._merged([value.value], self._returned) or self._of_return(value.value)
        if value.op in ("binop", "inplace_binop", "unary") and (value.fn in UFUNCS or value.fn in IN_PLACE):
            return self._of_operation(value, target)
        if value.op == "build_list":
            return self._merged(value.items, target.dtype)
        return self._of_call(value, target) if value.op == "call" else ""

    def _of_operation(self, expression: ir.Expr, target: Any) -> str:
        """Why an operation that was not replaced may differ."""
        operands = [expression.value] if expression.op == "unary" else [expression.lhs, expression.rhs]
        kinds = [element(self._types[v.name]) for v in operands]
        for variable, kind in zip(operands, kinds, strict=True):
            if self._is_concerned(variable):
                return f"Numba computes with {kind} in another dtype than NumPy"
        if all(isinstance(kind, types.Boolean) for kind in kinds) and not isinstance(element(target), types.Boolean):
            return TRUTH_VALUES
        if expression.op == "unary":
            return ""
        plain = IN_PLACE.get(expression.fn, expression.fn)
        if plain is operator.pow and isinstance(kinds[0], types.Boolean):
            return TRUTH_VALUES
        if plain is operator.pow and refuses_powers(*(self._types[v.name] for v in operands)):
            return POWERS
        left, right = (self._types[v.name] for v in operands)
        facts = self._analysis.facts(plain, *operands)
        if is_special_power(plain, left, right, facts.constant):
            return "NumPy computes x ** 0.5 as a square root, and x ** -1 as a quotient"
        if all(isinstance(kind, types.Integer) for kind in kinds) and may_divide_by_minus_one(plain, left, facts):
            return "integers may be divided by -1"
        if all(isinstance(kind, types.Integer) for kind in kinds) and plain in SHIFTS and not _is_width(right):
            return "Numba shifts by less than 64 bits only"
        return self._of_pythons(plain, expression)

    def _of_pythons(self, plain: Any, expression: ir.Expr) -> str:
        """Why an operation of numbers that may be Python's may differ."""
        kinds = self._types[expression.lhs.name], self._types[expression.rhs.name]
        if not may_differ(plain, kinds, self._analysis.facts(plain, expression.lhs, expression.rhs)):
            return ""
        if plain in DIVISIONS:
            return "Numba divides by zero as NumPy does, not as Python"
        return "Python's numbers may need more than 64 bits"

    def _of_return(self, returned: ir.Var) -> str:
        """Why what is returned may be of another class than in Python."""
        if self._mixed.holds_mixed(returned):
            return "a result is an integer on one way and a float on another; write 0.0 for 0"
        is_float = isinstance(types.unliteral(self._returned), types.Float)
        if self._stops_at_integers or not (is_float and self._mixed.may_return_integer(returned)):
            return ""
        note_mixture()
        return "the result is an integer on one way and a float on another; write 0.0 for 0"

    def _of_store(self, statement: ir.SetItem | ir.StaticSetItem) -> str:
        target, value = self._types[statement.target.name], self._types[statement.value.name]
        is_integer = isinstance(types.unliteral(value), types.Integer)
        if isinstance(target, types.List) and isinstance(target.dtype, types.Float) and is_integer:
            return "a list holds an integer among floats; write 0.0 for 0"
        if self._is_replaced:
            return ""
        if store_may_differ(target, value):
            return "a float that does not fit into an integer is refused by NumPy, and not by Numba"
        if isinstance(target, types.Array) and self._may_not_fit(statement.value, element(target)):
            return f"a Python integer that does not fit into {element(target)} is refused by NumPy, and not by Numba"
        return ""

    def _origin(self, variable: ir.Var) -> Origin:
        return self._analysis.of(variable)

    def _is_concerned(self, variable: ir.Var) -> bool:
        return is_concerned(self._types[variable.name], self._origin(variable))

    def _merged(self, variables: list[ir.Var], target: Any) -> str:
        """Why a name that has these values is not what it is in NumPy."""
        for variable in variables:
            kind = types.unliteral(self._types[variable.name])
            if self._is_concerned(variable) and kind != types.unliteral(target):
                return f"a name has numbers of {kind} and others, which Numba makes {types.unliteral(target)}"
        return ""

    def _of_call(self, call: ir.Expr, target: Any) -> str:
        function = self._types[call.func.name]
        arguments = [*call.args, *(variable for _, variable in call.kws)]
        this = function.this if isinstance(function, types.BoundFunction) else None
        reason = self._of_python_function(_python_function(function), this, arguments, target)
        if reason:
            return reason
        concerned = [v for v in arguments if self._is_concerned(v)]
        if not concerned and (this is None or not is_narrow(this)):
            return self._of_conversion(function, call)
        called = numpys_own(_python_function(function))
        if called is None or called in ANY_NUMBER:
            return ""
        try:
            results = [
                np.result_type(_example_result(called, this, call, values)) for values in self._examples(arguments)
            ]
        except Exception as error:
            return f"{_name(called)} of a narrow integer is not known: {error}"
        theirs = [from_dtype(dtype) for dtype in results]
        if any(t != theirs[0] for t in theirs):
            return f"{_name(called)} may give a Python integer or a number of NumPy"
        if theirs[0] != element(target):
            return f"{_name(called)} gives {theirs[0]} in NumPy and {element(target)} in Numba"
        return ""

    def _of_python_function(self, called: Any, this: Any, arguments: list[ir.Var], target: Any) -> str:
        """Why a call of one of Python's or NumPy's functions, or of a method of ``this``, may differ."""
        kinds = tuple(self._types[v.name] for v in arguments)
        if numpys_call_may_differ(called, kinds if this is None else (this, *kinds)):
            return f"{_name(called)} gives something else than NumPy for some values"
        if called is sum and isinstance(target, types.Integer) and not isinstance(kinds[0], types.Array):
            return "a sum of Python's integers may need more than 64 bits"
        if isinstance(called, str) or called is None:
            return ""
        if called in UFUNCS or called in IN_PLACE:
            return f"operator.{_name(called)} is not written as an operator"
        if called is round and len(arguments) == 2 and self._origin(arguments[0]) is Origin.NUMPY:
            return ""  # of NumPy's own numbers, round is NumPy's
        return f"{_name(called)} gives what NumPy gives, not what Python does" if call_may_differ(called, kinds) else ""

    def _of_conversion(self, function: Any, call: ir.Expr) -> str:
        """Why ``np.uint8(x)`` and the like may differ: NumPy refuses a Python integer that does not fit."""
        if not isinstance(function, types.NumberClass) or not is_narrow(function.dtype) or len(call.args) != 1:
            return ""
        if not self._may_not_fit(call.args[0], function.dtype):
            return ""
        return f"a Python integer that does not fit into {function.dtype} is refused by NumPy, and not by Numba"

    def _may_not_fit(self, variable: ir.Var, integers: Any) -> bool:
        """Whether it may be a Python integer outside of a type of integers."""
        kind = self._types[variable.name]
        if not is_narrow(integers) or not isinstance(types.unliteral(kind), types.Integer):
            return False
        if isinstance(kind, types.IntegerLiteral):
            return not integers.minval <= kind.literal_value <= integers.maxval
        return self._origin(variable) is not Origin.NUMPY and types.unliteral(kind) != integers

    def _examples(self, variables: list[ir.Var]) -> Iterator[tuple[Any, ...]]:
        """Small values of the types of these variables; both kinds of integers where the kind is not known."""
        yield from itertools.product(*(_example(self._types[v.name], self._origin(v)) for v in variables))


def _python_function(function: Any) -> Any:
    """The Python function that a call of this type runs; None for one that is compiled by these rules, too."""
    if isinstance(function, types.Dispatcher):
        return None
    if isinstance(function, types.BoundFunction):
        key: Any = function.template.key  # type: ignore[attr-defined]  # "array.sum", or the type and "sum"
        return key[-1] if isinstance(key, tuple) else str(key).rpartition(".")[2]
    if isinstance(function, types.NumberClass):
        return as_dtype(function.dtype).type
    key = getattr(function, "typing_key", None)
    if getattr(key, "__module__", None) in _OURS:
        return None
    return key


def _is_width(kind: Any) -> bool:
    """Whether it is a number of bits by which an int64 can be shifted."""
    return isinstance(kind, types.IntegerLiteral) and 0 <= kind.literal_value < 64


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))


def _example(kind: Any, origin: Origin) -> list[Any]:
    if isinstance(kind, types.Array):
        return [np.ones((2,) * kind.ndim, as_dtype(element(kind)))]
    if isinstance(kind, types.NumberClass | types.DType):
        return [as_dtype(kind.dtype)]
    if isinstance(kind, types.Literal) and not isinstance(kind, types.IntegerLiteral):
        return [kind.literal_value]
    if isinstance(kind, types.NoneType):
        return [None]
    number = as_dtype(types.unliteral(kind)).type(1)
    if is_python(kind, origin):
        return [1]
    return [1, number] if is_unclear(kind, origin) else [number]


def _example_result(called: Any, this: Any, call: ir.Expr, values: Any) -> Any:
    positional, named = values[: len(call.args)], values[len(call.args) :]
    keywords = dict(zip((name for name, _ in call.kws), named, strict=True))
    if this is not None:
        return getattr(_example(this, Origin.NUMPY)[0], called)(*positional, **keywords)
    if called in (max, min):  # gives one of its arguments: all must have the same type
        kinds = {type(value) for value in positional}
        if len(kinds) > 1:
            raise TypeError(f"its arguments are {' and '.join(sorted(k.__name__ for k in kinds))}")
    return called(*positional, **keywords)
