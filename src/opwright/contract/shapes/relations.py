"""Relations of sizes: conditions such as ``"hq % hk == 0"``, ``"k <= n"`` and ``"d in (64, 128)"``.

They are stated once, with ``ow.op(..., where=[...])``. A call is checked against them, and the sizes of test inputs are
chosen among those that satisfy them.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from opwright.contract.shapes.dims import evaluate, names_in
from opwright.internals.tensors import is_true

__all__ = ["Relation", "broken", "parse_relation"]

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


@dataclass(frozen=True)
class Relation:
    """One condition on sizes and ``int`` arguments, as it was written."""

    text: str

    def __str__(self) -> str:
        return self.text

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(_names(self.condition, self.text))

    @cached_property
    def numbers(self) -> frozenset[int]:
        """The integers that occur in it."""
        constants = (n.value for n in ast.walk(self.condition) if isinstance(n, ast.Constant))
        return frozenset(value for value in constants if isinstance(value, int))

    def holds(self, env: Mapping[str, Any]) -> bool:
        """Whether it holds; KeyError for a name that ``env`` lacks. Sizes may be symbolic.

        Division by zero counts as a condition that does not hold.
        """
        try:
            return is_true(_holds(self.condition, env))
        except ZeroDivisionError:
            return False

    @cached_property
    def condition(self) -> ast.expr:
        """It as an expression of Python."""
        return ast.parse(self.text, mode="eval").body


def parse_relation(text: str) -> Relation:
    """Raises ValueError if a condition cannot be evaluated."""
    try:
        relation = Relation(text)
        names = relation.names
    except SyntaxError:
        raise ValueError(f"{text!r} is not a condition") from None
    if not names:
        raise ValueError(f"{text!r} names no dim and no argument")
    return relation


def _names(node: ast.expr, text: str) -> set[str]:
    """The names of a condition, whose form is checked on the way."""
    match node:
        case ast.BoolOp(values=values):
            return {name for value in values for name in _names(value, text)}
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _names(operand, text)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            found = names_in(ast.unparse(left))
            for op, right in zip(ops, comparators, strict=True):
                is_membership = isinstance(op, ast.In | ast.NotIn)
                if not is_membership and type(op) not in _COMPARISONS:
                    raise ValueError(f"{text!r} uses more than == != < <= > >= in, and, or, not")
                listed = isinstance(right, ast.Tuple | ast.List | ast.Set)
                if is_membership != listed:
                    raise ValueError(f"{text!r}: write `in` with several sizes, as in 'd in (64, 128)'")
                parts = right.elts if isinstance(right, ast.Tuple | ast.List | ast.Set) else [right]
                found |= {name for part in parts for name in names_in(ast.unparse(part))}
            return found
    raise ValueError(f"{text!r} compares nothing: write a condition such as 'n % 8 == 0'")


def _holds(node: ast.expr, env: Mapping[str, Any]) -> Any:
    """A bool; a ``torch.SymBool`` if sizes are symbolic, in which each part of the condition is kept."""
    match node:
        case ast.BoolOp(op=op, values=values):
            return _joined((_holds(value, env) for value in values), isinstance(op, ast.And))
        case ast.UnaryOp(operand=operand):
            return torch.sym_not(_holds(operand, env))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            sides = [left, *comparators]
            pairs = zip(sides, ops, sides[1:], strict=False)
            return _joined((_compare(a, op, b, env) for a, op, b in pairs), is_and=True)
    raise ValueError(f"cannot evaluate {ast.unparse(node)!r}")


def _compare(left: ast.expr, op: ast.cmpop, right: ast.expr, env: Mapping[str, Any]) -> Any:
    value = evaluate(left, env)
    if isinstance(right, ast.Tuple | ast.List | ast.Set):
        is_one = _joined((value == evaluate(each, env) for each in right.elts), is_and=False)
        return torch.sym_not(is_one) if isinstance(op, ast.NotIn) else is_one
    return _COMPARISONS[type(op)](value, evaluate(right, env))


def _joined(conditions: Iterable[Any], is_and: bool) -> Any:
    """All of the conditions, or any of them; what comes after a decisive one is not evaluated."""
    found: Any = is_and
    for condition in conditions:
        if isinstance(condition, bool) and condition is not is_and:
            return condition
        if not isinstance(condition, bool):
            undecided = isinstance(found, bool)
            found = condition if undecided else (found & condition if is_and else found | condition)
    return found


def broken(relations: Sequence[Relation], env: Mapping[str, Any]) -> Relation | None:
    """The first relation that does not hold, among those whose names are all known."""
    return next((r for r in relations if r.names <= env.keys() and not r.holds(env)), None)
