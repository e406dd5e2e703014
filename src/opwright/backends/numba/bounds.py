"""How large the integers of a function may become: which operations on them surely stay within 64 bits."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numba
from numba.core import ir

from opwright.backends.numba.origins import Origins

__all__ = ["Bounds"]

# The size of an array that a function makes is limited by memory.
_MADE = 1 << 47
_UNKNOWN = 1 << 63
# So many bits are more than any loop counts to.
_ITERATIONS = 40
# Rounds until what loops feed back grows evenly, at least (one more for each name that is fed back), and from then on.
_SETTLING, _ROUNDS = 8, 4
_SIZES = frozenset({"shape", "size", "ndim"})


class Bounds:
    """The largest magnitudes of the integers of a function in Numba's form.

    What each iteration of a loop increases by the same amount is bounded by the iterations that a computer has time
    for; what grows faster is not bounded.

    Args:
        argument: the largest magnitude of an argument, and of the size of an array that is one.
    """

    def __init__(self, function: ir.FunctionIR, origins: Origins, argument: int) -> None:
        self._definitions: dict[str, list[Any]] = function._definitions
        self._origins = origins
        self._argument = argument
        self._of: dict[str, int] = dict.fromkeys(self._definitions, 0)
        for _ in range(_SETTLING + self._fed_back()):
            self._next()
        history = [self._of, *(self._next() for _ in range(2 * _ROUNDS))]
        self._of = {name: _limit([magnitudes[name] for magnitudes in history]) for name in self._of}

    def fits(self, symbol: Any, operands: Sequence[ir.Var]) -> bool:
        """Whether the result of an operation on these, if they are integers, surely has less than 64 bits."""
        return self._of_operation(symbol, [self._of.get(v.name, _UNKNOWN) for v in operands], operands) < _UNKNOWN

    def _fed_back(self) -> int:
        """How many names have values of several ways, of which one may lead back."""
        each = [value for values in self._definitions.values() for value in values]
        return sum(isinstance(value, ir.Expr) and value.op == "phi" for value in each)

    def _next(self) -> dict[str, int]:
        """The magnitudes after one more iteration of each loop."""
        self._of = dict(self._of)
        for name, values in self._definitions.items():
            self._of[name] = min(max((self._of_value(value) for value in values), default=0), _UNKNOWN)
        return self._of

    def _of_value(self, value: Any) -> int:
        if isinstance(value, ir.Var):
            return self._of.get(value.name, _UNKNOWN)
        if isinstance(value, ir.Arg):
            return self._argument
        if isinstance(value, ir.Const | ir.Global | ir.FreeVar):
            return abs(value.value) if isinstance(value.value, int) else _UNKNOWN
        return self._of_expression(value) if isinstance(value, ir.Expr) else _UNKNOWN

    def _of_expression(self, expression: ir.Expr) -> int:
        if expression.op in ("binop", "inplace_binop", "unary"):
            operands = [expression.value] if expression.op == "unary" else [expression.lhs, expression.rhs]
            magnitudes = [self._of_value(v) for v in operands]
            plain = expression.immutable_fn if expression.op == "inplace_binop" else expression.fn
            return self._of_operation(plain, magnitudes, operands)
        if expression.op in ("iternext", "pair_first", "cast", "getiter", "exhaust_iter"):
            return self._of_value(expression.value)
        if expression.op == "phi":
            return max((self._of_value(v) for v in expression.incoming_values if isinstance(v, ir.Var)), default=0)
        if expression.op == "getattr" and expression.attr in _SIZES:
            return self._size_of(expression.value)
        if expression.op in ("getitem", "static_getitem") and self._origins.is_shape(expression.value):
            return self._of_value(expression.value)
        return self._of_call(expression) if expression.op == "call" else _UNKNOWN

    def _of_call(self, call: ir.Expr) -> int:
        function = self._origins.value_of(call.func)
        if function is len and len(call.args) == 1:
            return self._size_of(call.args[0])
        if any(function is each for each in (range, numba.prange, abs, max, min, int)) and call.args:
            return max(map(self._of_value, call.args))
        return 1 if function is bool else _UNKNOWN

    def _size_of(self, array: ir.Var) -> int:
        return self._argument if self._origins.is_argument(array) else _MADE

    def _of_operation(self, symbol: Any, magnitudes: list[int], operands: Sequence[ir.Var]) -> int:
        largest = max(magnitudes)
        if symbol in (operator.add, operator.sub):
            return sum(magnitudes)
        if symbol is operator.mul:
            return magnitudes[0] * magnitudes[1]
        if symbol in (operator.floordiv, operator.rshift):
            return magnitudes[0]
        if symbol is operator.mod:
            return magnitudes[1]
        if symbol in (operator.and_, operator.or_, operator.xor, operator.invert):
            return _UNKNOWN if largest >= _UNKNOWN else 1 << largest.bit_length()
        if symbol in (operator.neg, operator.pos):
            return largest
        if symbol is operator.pow:
            exponent = self._origins.value_of(operands[1])
            is_known = isinstance(exponent, int) and 0 <= exponent < 64
            return magnitudes[0] ** exponent if is_known else _UNKNOWN
        return 1 if symbol in _COMPARISONS else _UNKNOWN


_COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne, operator.not_)


def _limit(magnitudes: list[int]) -> int:
    """The largest magnitude after all iterations; these are from one to the next."""
    steps = [after - before for before, after in itertools.pairwise(magnitudes)]
    earlier, later = max(steps[:_ROUNDS]), max(steps[_ROUNDS:])
    if later > earlier:
        return _UNKNOWN
    return min(magnitudes[-1] + (later << _ITERATIONS), _UNKNOWN)
