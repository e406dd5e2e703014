"""Compiles functions by Numba with NumPy's rules for integers other than int64.

Functions are compiled as they are at first. If narrow integers are computed with, a function is compiled again with its
operations replaced by those with NumPy's dtypes. What remains is refused: a number that may be a Python integer or one
of NumPy, a function whose dtype is another one in Numba, sums of truth values.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import types
from numba.core import ir
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.dispatcher import Dispatcher
from numba.core.ir_utils import build_definitions
from numba.core.typed_passes import NopythonTypeInference
from numba.core.untyped_passes import ReconstructSSA
from numba.np.numpy_support import as_dtype, from_dtype

from opwright.backends.numba.integers import (
    CHECKED,
    IN_PLACE,
    SHIFTS,
    TRUTH_VALUES,
    UFUNCS,
    binary,
    element,
    is_concerned,
    is_narrow,
    is_python,
    is_unclear,
    note_write,
    refused,
    stored,
    unary,
)
from opwright.backends.numba.origins import NEW_ARRAYS, Origin, Origins

__all__ = ["AsNumba", "OfCaller", "OfHelper"]


class _Replace(FunctionPass):
    """Replaces operations by those with NumPy's dtypes; the types are not known yet."""

    _name = "opwright_replace_operations"
    is_helper = False

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        function = state.func_ir
        origins = Origins(function, self.is_helper)
        for block in function.blocks.values():
            replaced: list[Any] = []
            for statement in block.body:
                if _writes(statement, origins):
                    note_write()
                replaced += _replaced(statement, origins, block.scope)
            block.body = replaced
        state.metadata["opwright_origins"] = origins.all()
        function._definitions = build_definitions(function.blocks)
        state.typingctx.refresh()  # for operations that no function has used so far
        state.targetctx.refresh()
        return True


def _writes(statement: Any, origins: Origins) -> bool:
    """Whether a statement may write to what the function was given."""
    if isinstance(statement, ir.SetItem | ir.StaticSetItem | ir.DelItem | ir.SetAttr):
        return not origins.is_new(statement.target)
    if not (isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Expr)):
        return False
    expression = statement.value
    if expression.op == "inplace_binop":
        is_number = origins.of(expression.lhs) in (Origin.PYTHON, Origin.NUMPY)
        return not is_number and not origins.is_new(expression.lhs)
    return expression.op == "call" and _may_write(origins.value_of(expression.func), expression)


def _may_write(function: Any, call: ir.Expr) -> bool:
    """Whether a call may write to its arguments, or a method to its array. Functions that are compiled by these rules
    note that themselves."""
    if isinstance(function, np.ufunc):
        return bool(call.kws) or len(call.args) > function.nin
    if isinstance(function, Dispatcher) or (isinstance(function, type) and issubclass(function, np.generic)):
        return False
    return not any(function is one for one in (*_ANY_NUMBER, *NEW_ARRAYS, abs, max, min))


def _replaced(statement: Any, origins: Origins, scope: Any) -> list[Any]:
    """The statements that stand for one statement."""
    if isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Expr):
        expression = statement.value
        if expression.op == "binop" and expression.fn in UFUNCS:
            helper = binary(expression.fn, origins.of(expression.lhs), origins.of(expression.rhs))
            return _called(helper, [expression.lhs, expression.rhs], statement, scope)
        if expression.op == "inplace_binop" and expression.fn in IN_PLACE:
            helper = binary(expression.fn, origins.of(expression.lhs), origins.of(expression.rhs))
            return _called(helper, [expression.lhs, expression.rhs], statement, scope)
        if expression.op == "unary" and expression.fn in UFUNCS:
            return _called(unary(expression.fn, origins.of(expression.value)), [expression.value], statement, scope)
    if isinstance(statement, ir.SetItem | ir.StaticSetItem):
        value = scope.redefine("$opwright_stored", statement.loc)
        first = ir.Assign(ir.Const(0, statement.loc), value, statement.loc)
        called = _called(stored, [statement.target, statement.value], first, scope)
        statement.value = value
        return [*called, statement]
    return [statement]


def _called(helper: Callable[..., Any], arguments: list[ir.Var], statement: ir.Assign, scope: Any) -> list[Any]:
    function = scope.redefine("$opwright_operation", statement.loc)
    return [
        ir.Assign(ir.Global(helper.__name__, helper, statement.loc), function, statement.loc),
        ir.Assign(ir.Expr.call(function, arguments, (), statement.loc), statement.target, statement.loc),
    ]


class _Equivalents(FunctionPass):
    """``np.ndarray(shape, dtype)``, which Numba does not know, is ``np.empty(shape, dtype)``."""

    _name = "opwright_equivalents"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        definitions = state.func_ir._definitions
        changed = False
        for block in state.func_ir.blocks.values():
            for call in block.find_exprs("call"):
                for made in definitions.get(call.func.name, []):
                    if _is_allocation(made, call, definitions):
                        made.attr, changed = "empty", True
        return changed


def _is_allocation(made: Any, call: ir.Expr, definitions: Any) -> bool:
    if not (isinstance(made, ir.Expr) and made.op == "getattr" and made.attr == "ndarray" and len(call.args) <= 2):
        return False
    modules = definitions.get(made.value.name, [])
    return {name for name, _ in call.kws} <= {"shape", "dtype", "order"} and all(
        getattr(module, "value", None) is np for module in modules
    )


class _ReplaceInHelper(_Replace):
    """The same in a function that a compiled one calls: integers of 64 bits may come from either."""

    _name = "opwright_replace_operations_in_helper"
    is_helper = True


class _Examine(FunctionPass):
    """Notes where narrow integers are used otherwise than in NumPy; the types are known."""

    _name = "opwright_examine_narrow_integers"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        origins: dict[str, Origin] = state.metadata.get("opwright_origins", {})
        examined = _Examined(state.typemap, state.calltypes, origins, state.return_type)
        for block in state.func_ir.blocks.values():
            for statement in block.body:
                reason = examined.reason(statement)
                if reason:
                    raise refused(f"{reason} (line {statement.loc.line})")
        return False


class _Examined:
    """One function with its types."""

    def __init__(self, types_of: dict[str, Any], calls: Any, origins: dict[str, Origin], returned: Any) -> None:
        self._types = types_of
        self._calls = calls
        self._origins = origins
        self._returned = returned

    def reason(self, statement: Any) -> str:
        """Why a statement gives another dtype than NumPy, "" if it does not."""
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
            return self._merged([value.value], self._returned)
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
        if IN_PLACE.get(expression.fn, expression.fn) is operator.pow and isinstance(kinds[0], types.Boolean):
            return TRUTH_VALUES
        if IN_PLACE.get(expression.fn, expression.fn) in CHECKED and all(isinstance(k, types.Integer) for k in kinds):
            return self._of_checked(expression, self._types[operands[1].name])
        return ""

    def _of_checked(self, expression: ir.Expr, right: Any) -> str:
        """Why a shift or division of int64 may differ: by numbers that only Python, or nobody, accepts."""
        is_shift = IN_PLACE.get(expression.fn, expression.fn) in SHIFTS
        if isinstance(right, types.IntegerLiteral) and (
            0 <= right.literal_value < 64 if is_shift else right.literal_value
        ):
            return ""
        if is_shift:
            return "Numba shifts by less than 64 bits only"
        is_of_arrays = isinstance(self._types[expression.lhs.name], types.Array) or isinstance(right, types.Array)
        return "" if is_of_arrays else "Numba divides integers by zero as NumPy does, not as Python"

    def _origin(self, variable: ir.Var) -> Origin:
        return self._origins.get(variable.name, Origin.UNKNOWN)

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
        concerned = [v for v in arguments if self._is_concerned(v)]
        if not concerned and (this is None or not is_narrow(this)):
            return self._of_conversion(function, call)
        called = _python_function(function)
        if called is int and element(self._types[arguments[0].name]) == types.uint64:
            return "int of a uint64 may need more than 64 bits"
        if called is None or called in _ANY_NUMBER:
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

    def _of_conversion(self, function: Any, call: ir.Expr) -> str:
        """Why ``np.uint8(x)`` and the like may differ: NumPy refuses a Python integer that does not fit."""
        if not isinstance(function, types.NumberClass) or not is_narrow(function.dtype) or len(call.args) != 1:
            return ""
        kind = self._types[call.args[0].name]
        if not isinstance(types.unliteral(kind), types.Integer) or self._origin(call.args[0]) is Origin.NUMPY:
            return ""
        literal = kind.literal_value if isinstance(kind, types.IntegerLiteral) else None
        if literal is not None and function.dtype.minval <= literal <= function.dtype.maxval:
            return ""
        return f"a Python integer that does not fit into {function.dtype} is refused by NumPy, and not by Numba"

    def _examples(self, variables: list[ir.Var]) -> Iterator[tuple[Any, ...]]:
        """Small values of the types of these variables; both kinds of integers where the kind is not known."""
        yield from itertools.product(*(_example(self._types[v.name], self._origin(v)) for v in variables))


# What they do with a narrow integer does not depend on its width.
_ANY_NUMBER = (range, slice, len, bool, print, int, float, complex, isinstance, tuple, enumerate, zip)


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
    if getattr(key, "__module__", None) == binary.__module__:
        return None
    return key


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


for _each in (_Equivalents, _Replace, _ReplaceInHelper):
    register_pass(mutates_CFG=False, analysis_only=False)(_each)
register_pass(mutates_CFG=False, analysis_only=True)(_Examine)


class AsNumba(CompilerBase):
    """Compiles a function as it is, and refuses one that computes with narrow integers."""

    replace: type[_Replace] | None = None

    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_Equivalents, ReconstructSSA)
        if self.replace is not None:
            passes.add_pass_after(self.replace, _Equivalents)
        passes.add_pass_after(_Examine, NopythonTypeInference)
        passes.finalize()
        return [passes]


class OfCaller(AsNumba):
    """Compiles a function with NumPy's dtypes for narrow integers."""

    replace = _Replace


class OfHelper(AsNumba):
    """The same for a function that a compiled one calls."""

    replace = _ReplaceInHelper
