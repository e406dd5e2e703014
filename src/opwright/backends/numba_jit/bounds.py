"""How large the integers of a function may become: which operations on them surely stay within 64 bits."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numba
from numba.core import ir, types

from opwright.backends.numba_jit.loops import loops_first_to_last
from opwright.backends.numba_jit.origins import Origins

__all__ = ["Bounds"]

# The size of an array that a function makes is limited by memory.
_MADE = 1 << 47
_UNKNOWN = 1 << 63
# So many bits are more than any loop counts to.
_ITERATIONS = 40
_SIZES = frozenset({"shape", "size", "ndim"})
_PASSED_ON = frozenset({"iternext", "pair_first", "cast", "getiter", "exhaust_iter"})
# Of integers, these give none that is larger.
_CHOOSE = (range, numba.prange, abs, max, min)
# These give an integer of any number.
_WHOLE = (int, math.floor, math.ceil, math.trunc)
_COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne, operator.not_)
_SUMS = (operator.add, operator.sub)
_SIGNS = (operator.neg, operator.pos)
_PARTS = (operator.floordiv, operator.rshift)
_OF_BITS = (operator.and_, operator.or_, operator.xor, operator.invert)
_BY_CONSTANTS = (operator.pow, operator.lshift)
_KNOWN = (*_SUMS, *_SIGNS, *_PARTS, *_OF_BITS, operator.mul, operator.mod)


class Bounds:
    """The largest magnitudes of the integers of a function in Numba's form.

    What the iterations of a loop add to a name is bounded by the iterations that a computer has time for, if each adds
    no more than something from outside of the loop. What a loop multiplies, or adds to itself, is not bounded; neither
    is what may be a float.

    Args:
        arguments: the types of the function's arguments.
        limit: the largest magnitude of an argument, and of the size of an array that is one.
    """

    def __init__(self, function: ir.FunctionIR, origins: Origins, arguments: Sequence[Any], limit: int) -> None:
        self._definitions: Mapping[str, list[Any]] = function._definitions
        self._origins = origins
        self._arguments = arguments
        self._limit = limit
        self._of: dict[str, int] = {}
        self._integers = self._find_integers()
        reads = {name: {v.name for value in self._values(name) for v in self._read(value)} for name in self._integers}
        for names in loops_first_to_last(reads):
            is_loop = len(names) > 1 or names[0] in reads[names[0]]
            found = self._of_loop(names) if is_loop else max(map(self._of_value, self._values(names[0])))
            self._of |= dict.fromkeys(names, min(found, _UNKNOWN))

    def fits(self, symbol: Any, operands: Sequence[ir.Var]) -> bool:
        """Whether the result of an operation on these, if they are integers, surely has less than 64 bits."""
        return symbol in (*_KNOWN, *_BY_CONSTANTS) and self._of_operation(symbol, operands) < _UNKNOWN

    def _values(self, name: str) -> list[Any]:
        return self._definitions[name]

    # -- which names are integers ----------------------------------------------------------------------------------

    def _find_integers(self) -> set[str]:
        """The names that surely are integers, ranges of them or shapes, by operations of which something is known."""
        made_of = {name: list(map(self._made_of, values)) for name, values in self._definitions.items() if values}
        integers = {name for name, each in made_of.items() if None not in each}
        size = -1
        while size != len(integers):
            size = len(integers)
            for name in tuple(integers):
                if any(v.name not in integers for parts in made_of[name] for v in parts or ()):
                    integers.discard(name)
        return integers

    def _made_of(self, value: Any) -> Sequence[ir.Var] | None:
        """The variables that must be integers for a value to be one; None if it may be something else all the same."""
        if isinstance(value, ir.Var):
            return [value]
        if isinstance(value, ir.Arg):
            return [] if self._of_argument(value) < _UNKNOWN else None
        if isinstance(value, ir.Const | ir.Global | ir.FreeVar):
            return [] if isinstance(value.value, int) else None
        if not isinstance(value, ir.Expr):
            return None
        if value.op in ("binop", "inplace_binop", "unary"):
            return self._operation_made_of(value)
        if value.op in _PASSED_ON:
            return [value.value]
        if value.op == "phi":
            return [v for v in value.incoming_values if isinstance(v, ir.Var)]
        if value.op == "getattr" and value.attr in _SIZES:
            return []
        if value.op in ("getitem", "static_getitem") and self._origins.is_shape(value.value):
            return [value.value]
        return self._call_made_of(value) if value.op == "call" else None

    def _operation_made_of(self, expression: ir.Expr) -> Sequence[ir.Var] | None:
        symbol, operands = _operation(expression)
        if symbol in _COMPARISONS:
            return []
        is_known = symbol in _KNOWN or (symbol in _BY_CONSTANTS and self._exponent(operands) is not None)
        return operands if is_known else None

    def _call_made_of(self, call: ir.Expr) -> Sequence[ir.Var] | None:
        if call.kws or call.vararg is not None or not call.args:
            return None
        function = self._origins.value_of(call.func)
        if function is len or function is bool or _is_one_of(function, _WHOLE):
            return []
        return call.args if _is_one_of(function, _CHOOSE) else None

    # -- how large they are ----------------------------------------------------------------------------------------

    def _read(self, value: Any) -> Sequence[ir.Var]:
        """The variables upon whose magnitudes that of a value depends."""
        if isinstance(value, ir.Expr) and value.op in ("binop", "inplace_binop", "unary"):
            symbol, operands = _operation(value)
            if symbol is operator.mod:
                return operands[1:]
            if symbol in (*_PARTS, *_BY_CONSTANTS):
                return operands[:1]
            return [] if symbol in _COMPARISONS or self._mask(symbol, operands) is not None else operands
        if (
            isinstance(value, ir.Expr)
            and value.op == "call"
            and _is_one_of(self._origins.value_of(value.func), (*_WHOLE, *_CHOOSE))
        ):
            called: Sequence[ir.Var] = value.args
            return called
        return self._made_of(value) or []

    def _of_loop(self, names: Sequence[str]) -> int:
        """The largest magnitude of names that lead back to themselves."""
        self._of |= dict.fromkeys(names, 0)
        these = frozenset(names)
        largest = added = 0
        for value in (value for name in names for value in self._values(name)):
            others = self._of_value(value)  # with 0 for these names: what comes from outside
            largest = max(largest, others)
            if isinstance(value, ir.Expr) and value.op in ("binop", "inplace_binop", "unary"):
                symbol, _ = _operation(value)
                own = [v for v in self._read(value) if v.name in these]
                if own and symbol in _SUMS and len(own) == 1:
                    added += others
                elif own and symbol not in (*_SIGNS, *_PARTS):
                    return _UNKNOWN
        return largest + (added << _ITERATIONS)

    def _of_variable(self, variable: ir.Var) -> int:
        return self._of.get(variable.name, _UNKNOWN)

    def _of_value(self, value: Any) -> int:
        if isinstance(value, ir.Arg):
            return self._of_argument(value)
        if isinstance(value, ir.Const | ir.Global | ir.FreeVar):
            return abs(int(value.value))
        if isinstance(value, ir.Expr):
            if value.op in ("binop", "inplace_binop", "unary"):
                return self._of_operation(*_operation(value))
            if value.op == "getattr":
                return self._size_of(value.value)
            function = self._origins.value_of(value.func) if value.op == "call" else None
            if function is len or function is bool:
                return 1 if function is bool else self._size_of(value.args[0])
        return max(map(self._of_variable, self._read(value)), default=_UNKNOWN)

    def _of_argument(self, argument: ir.Arg) -> int:
        kind = types.unliteral(self._arguments[argument.index])
        if isinstance(kind, types.Omitted):
            return abs(kind.value) if isinstance(kind.value, int) else _UNKNOWN
        return self._limit if isinstance(kind, types.Integer | types.Boolean) else _UNKNOWN

    def _size_of(self, array: ir.Var) -> int:
        return self._limit if self._origins.is_argument(array) else _MADE

    def _of_operation(self, symbol: Any, operands: Sequence[ir.Var]) -> int:
        mask = self._mask(symbol, operands)
        if mask is not None:
            return mask
        if symbol in _COMPARISONS:
            return 1
        magnitudes = list(map(self._of_variable, operands))
        if symbol in _SUMS:
            return sum(magnitudes)
        if symbol is operator.mul:
            return magnitudes[0] * magnitudes[1]
        if symbol is operator.mod:
            return magnitudes[1]
        if symbol in (*_SIGNS, *_PARTS):
            return magnitudes[0]
        if symbol in _BY_CONSTANTS:
            exponent = self._exponent(operands)
            return _UNKNOWN if exponent is None else symbol(magnitudes[0], exponent)
        largest = max(magnitudes)
        return _UNKNOWN if largest >= _UNKNOWN else 1 << largest.bit_length()

    def _exponent(self, operands: Sequence[ir.Var]) -> int | None:
        exponent = self._origins.value_of(operands[1])
        return exponent if isinstance(exponent, int) and 0 <= exponent < 64 else None

    def _mask(self, symbol: Any, operands: Sequence[ir.Var]) -> int | None:
        """The constant, not negative, of which a value has some bits, and no others."""
        values = [self._origins.value_of(v) for v in operands] if symbol is operator.and_ else []
        return min((v for v in values if isinstance(v, int) and v >= 0), default=None)


def _operation(expression: ir.Expr) -> tuple[Any, list[ir.Var]]:
    """The symbol of an operation, not in place, and its operands."""
    if expression.op == "unary":
        return expression.fn, [expression.value]
    symbol = expression.immutable_fn if expression.op == "inplace_binop" else expression.fn
    return symbol, [expression.lhs, expression.rhs]


def _is_one_of(value: Any, functions: Sequence[Any]) -> bool:
    return any(value is function for function in functions)
