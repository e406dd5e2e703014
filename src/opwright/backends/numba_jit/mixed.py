"""Names that are an integer on one way through a function and a float on another; Numba makes them floats."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from numba import types
from numba.core import ir

__all__ = ["Mixed"]

# Of two integers, these give an integer in Python.
_KEEP_INTEGERS = (
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.pow, operator.neg, operator.pos,
    operator.iadd, operator.isub, operator.imul, operator.ifloordiv, operator.imod, operator.ipow,
)  # fmt: skip
_GIVE_ARGUMENTS = (max, min, abs)


class Mixed:
    """The variables of a function that are floats in Numba, and may be integers in Python.

    Args:
        types_of: the types of variables.
    """

    def __init__(self, function: ir.FunctionIR, types_of: Mapping[str, Any]) -> None:
        self._definitions: dict[str, list[Any]] = function._definitions
        self._types = types_of
        self._mixed: set[str] = set()
        size = -1
        while size < len(self._mixed):
            size = len(self._mixed)
            for name, values in self._definitions.items():
                if self._is_float(name) and any(map(self._may_be_integer, values)):
                    self._mixed.add(name)

    def may_return_integer(self, returned: ir.Var) -> bool:
        """Whether what is returned as a float may be an integer in Python."""
        return self._has_integer(returned.name) or returned.name in self._mixed

    def holds_mixed(self, variable: ir.Var) -> bool:
        """Whether it is a tuple or list with such a value."""
        return any(
            isinstance(value, ir.Expr) and value.op in ("build_tuple", "build_list") and
            any(item.name in self._mixed for item in value.items)
            for value in self._definitions.get(variable.name, [])
        )  # fmt: skip

    def _may_be_integer(self, value: Any) -> bool:
        if isinstance(value, ir.Var):
            return self._is_one(value)
        if not isinstance(value, ir.Expr):
            return False
        if value.op == "phi":
            return any(isinstance(v, ir.Var) and self._is_one(v) for v in value.incoming_values)
        if value.op == "cast":
            return self._is_one(value.value)
        if value.op in ("binop", "inplace_binop"):
            return value.fn in _KEEP_INTEGERS and self._is_one(value.lhs) and self._is_one(value.rhs)
        if value.op == "unary":
            return value.fn in _KEEP_INTEGERS and self._is_one(value.value)
        if value.op == "call":
            function = getattr(self._types.get(value.func.name), "typing_key", None)
            is_one_of_them = function in _GIVE_ARGUMENTS and any(self._is_one(v) for v in value.args)
            return is_one_of_them or function is sum  # which begins with 0
        return False

    def _is_one(self, variable: ir.Var) -> bool:
        """Whether it may be an integer."""
        return self._has_integer(variable.name) or variable.name in self._mixed

    def _has_integer(self, name: str) -> bool:
        return isinstance(types.unliteral(self._types.get(name)), types.Integer | types.Boolean)

    def _is_float(self, name: str) -> bool:
        return isinstance(types.unliteral(self._types.get(name)), types.Float)
