"""Compiles functions by Numba with the numbers of Python and NumPy.

Functions are compiled as they are at first. If one computes with integers other than int64, or with numbers of Python
for which 64 bits may not suffice, it is compiled again with its operations replaced. What remains is refused: a number
that may be a Python integer or one of NumPy, a function whose dtype is another one in Numba, sums of truth values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Set
from typing import Any

import numpy as np
from numba.core import ir
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.dispatcher import Dispatcher
from numba.core.ir_utils import build_definitions
from numba.core.typed_passes import NopythonTypeInference
from numba.core.unsafe.eh import mark_try_block
from numba.core.untyped_passes import ReconstructSSA

from opwright.backends.numba_jit.analysis import Analysis
from opwright.backends.numba_jit.examination import Examined
from opwright.backends.numba_jit.integers import IN_PLACE, UFUNCS, binary, stored, unary
from opwright.backends.numba_jit.mixed import Mixed
from opwright.backends.numba_jit.names_in_code import with_inner_codes
from opwright.backends.numba_jit.numpy_functions import in_place_of_numpys
from opwright.backends.numba_jit.origins import ANY_NUMBER, NEW_ARRAYS, REDUCTIONS, Origin, Origins
from opwright.backends.numba_jit.python_numbers import in_place_of, returned
from opwright.backends.numba_jit.refusals import note_write, refused

__all__ = ["compiler"]


class _Replace(FunctionPass):
    """Replaces operations by those with NumPy's dtypes; the types are not known yet."""

    _name = "opwright_replace_operations"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        function = state.func_ir
        analysis = Analysis(function, state.args, **state.metadata[_OPTIONS])
        stops = state.metadata[_STOPS]
        for block in function.blocks.values():
            replaced: list[Any] = []
            for statement in block.body:
                if _catches(statement):
                    raise refused(f"it catches errors, that by which such code stops among them ({statement.loc})")
                if _writes(statement, analysis.origins):
                    note_write()
                replaced += _replaced(statement, analysis, block.scope, stops)
            block.body = replaced
        state.metadata[_ANALYSIS] = analysis
        function._definitions = build_definitions(function.blocks)
        state.typingctx.refresh()  # for operations that no function has used so far
        state.targetctx.refresh()
        return True


_ANALYSIS, _OPTIONS, _STOPS = "opwright_analysis", "opwright_options", "opwright_stops_at_integers"


def _catches(statement: Any) -> bool:
    """Whether it is the beginning of a block with ``except``."""
    is_named = isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Global)
    return is_named and statement.value.value is mark_try_block


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
    if getattr(function, "__module__", "") == math.__name__:
        return False
    return not any(function is one for one in (*ANY_NUMBER, *NEW_ARRAYS, *REDUCTIONS, abs, max, min, round, divmod))


def _replaced(statement: Any, analysis: Analysis, scope: Any, stops_at_integers: bool) -> list[Any]:
    """The statements that stand for one statement."""
    if isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Expr):
        expression = statement.value
        if expression.op in ("binop", "inplace_binop") and (expression.fn in UFUNCS or expression.fn in IN_PLACE):
            facts = analysis.facts(IN_PLACE.get(expression.fn, expression.fn), expression.lhs, expression.rhs)
            return _called(binary(expression.fn, facts), [expression.lhs, expression.rhs], statement, scope)
        if expression.op == "unary" and expression.fn in UFUNCS:
            return _called(unary(expression.fn, analysis.of(expression.value)), [expression.value], statement, scope)
        if expression.op == "cast" and stops_at_integers:
            value = scope.redefine("$opwright_returned", statement.loc)
            called = _called(returned, [expression.value], ir.Assign(expression, value, statement.loc), scope)
            expression.value = value
            return [*called, statement]
        if expression.op == "call" and not expression.kws and expression.vararg is None:
            function, count = analysis.origins.value_of(expression.func), len(expression.args)
            ours = in_place_of(function, count) or in_place_of_numpys(function, count)
            return _called(ours, expression.args, statement, scope) if ours is not None else [statement]
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
    """``np.ndarray(shape, dtype)``, which Numba does not know, is ``np.empty(shape, dtype)``, and
    ``enumerate(a, start=1)`` is ``enumerate(a, 1)``."""

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
                    changed |= _pass_by_position(made, call)
        return changed


# Functions whose keywords Numba does not know.
_BY_POSITION = {enumerate: ("iterable", "start"), sum: ("iterable", "start"), round: ("number", "ndigits")}


def _pass_by_position(function: Any, call: ir.Expr) -> bool:
    """Pass what follows a call's arguments by position as such, if it is passed by name."""
    value = getattr(function, "value", None)
    names = next((names for known, names in _BY_POSITION.items() if known is value), ())
    following = names[len(call.args) :]
    if not call.kws or [name for name, _ in call.kws] != list(following[: len(call.kws)]):
        return False
    call.args, call.kws = [*call.args, *(value for _, value in call.kws)], ()
    return True


def _is_allocation(made: Any, call: ir.Expr, definitions: Any) -> bool:
    if not (isinstance(made, ir.Expr) and made.op == "getattr" and made.attr == "ndarray" and len(call.args) <= 2):
        return False
    modules = definitions.get(made.value.name, [])
    return {name for name, _ in call.kws} <= {"shape", "dtype", "order"} and all(
        getattr(module, "value", None) is np for module in modules
    )


class _Examine(FunctionPass):
    """Refuses a function that gives other numbers than Python and NumPy; the types are known."""

    _name = "opwright_examine_numbers"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        analysis = state.metadata.get(_ANALYSIS)
        is_replaced = analysis is not None
        if not is_replaced:
            state.func_ir._definitions = build_definitions(state.func_ir.blocks)
            analysis = Analysis(state.func_ir, state.args, **state.metadata[_OPTIONS], types_of=state.typemap)
        examined = Examined(
            state.typemap,
            analysis,
            state.return_type,
            Mixed(state.func_ir, state.typemap),
            is_replaced=is_replaced,
            stops_at_integers=state.metadata[_STOPS],
        )
        inner = set(with_inner_codes(state.func_id.code))
        for block in state.func_ir.blocks.values():
            for statement in block.body:
                reason = _PASSED_ON if _is_inner(statement, inner) else examined.reason(statement)
                if reason:
                    raise refused(f"{reason} (line {statement.loc.line})")
        return False


_PASSED_ON = "a function that is defined within it is passed on, and compiled with Numba's numbers"


def _is_inner(statement: Any, codes: Set[Any]) -> bool:
    """Whether it names one of these functions, which Numba has compiled by itself; most are written out in place."""
    if not (isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Global)):
        return False
    return isinstance(statement.value.value, Dispatcher) and statement.value.value.py_func.__code__ in codes


for _each in (_Equivalents, _Replace):
    register_pass(mutates_CFG=False, analysis_only=False)(_each)
register_pass(mutates_CFG=False, analysis_only=True)(_Examine)


class _Compiler(CompilerBase):
    replaces: bool
    is_helper: bool
    argument_limit: int
    stops_at_integers: bool

    def define_pipelines(self) -> list[Any]:
        options = {"is_helper": self.is_helper, "argument_limit": self.argument_limit}
        self.state.metadata[_OPTIONS] = options
        self.state.metadata[_STOPS] = self.stops_at_integers
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_Equivalents, ReconstructSSA)
        if self.replaces:
            passes.add_pass_after(_Replace, _Equivalents)
        passes.add_pass_after(_Examine, NopythonTypeInference)
        passes.finalize()
        return [passes]


@functools.cache
def compiler(replaces: bool, is_helper: bool, argument_limit: int, stops_at_integers: bool) -> type[CompilerBase]:
    """Compiles a function with the numbers of Python and NumPy, or refuses it.

    Args:
        replaces: replace operations by those with NumPy's dtypes; without, a function that needs them is refused.
        is_helper: a compiled function calls it.
        argument_limit: what a caller's integer arguments, and the sizes of its arrays, are below.
        stops_at_integers: its results are floats, and it stops where Python may return an integer.
    """
    options = {
        "replaces": replaces,
        "is_helper": is_helper,
        "argument_limit": 1 << 63 if is_helper else argument_limit,
        "stops_at_integers": stops_at_integers,
    }
    return type("Compiler", (_Compiler,), options)
