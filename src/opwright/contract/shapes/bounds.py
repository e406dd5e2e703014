"""What conditions say of the ranges of sizes: ``"a <= b"`` with b up to 8 leaves a from 0 to 8.

Narrowing a range never removes a size that fulfils the condition with some sizes in the other ranges, so an empty
range proves that there are none. The method is HC4-revise (Benhamou et al., "Revising hull and box consistency",
1999), on integers.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from opwright.contract.shapes.range_arithmetic import (
    MOST,
    OPERATIONS,
    Combine,
    EmptyError,
    FractionError,
    Range,
    Split,
    common_range,
)

__all__ = ["Condition", "Range", "Ranges", "narrow", "read_condition"]

Ranges = dict[str, Range]


class Condition(Protocol):
    """A condition without ``not`` and ``in``."""

    def shorten(self, ranges: Ranges) -> None:
        """Shorten the ranges to what it allows. Raises EmptyError if that is nothing."""
        ...


def narrow(condition: Condition, ranges: Ranges) -> bool:
    """Shorten ``ranges`` to what a condition allows; False if it allows nothing."""
    try:
        condition.shorten(ranges)
    except EmptyError:
        return False
    except FractionError:
        pass
    return True


# -- conditions -------------------------------------------------------------------------------------

_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
}  # fmt: skip


def read_condition(node: ast.expr, is_negated: bool = False) -> Condition:
    """A condition as it is written, or its opposite."""
    match node:
        case ast.BoolOp(op=op, values=values):
            return _joined([read_condition(v, is_negated) for v in values], isinstance(op, ast.And) is not is_negated)
        case ast.UnaryOp(operand=operand):
            return read_condition(operand, not is_negated)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            pairs = zip([left, *comparators], ops, comparators, strict=False)
            return _joined([_read_comparison(a, op, b, is_negated) for a, op, b in pairs], not is_negated)
    raise ValueError(f"{ast.unparse(node)!r} is not a condition")


def _read_comparison(left: ast.expr, op: ast.cmpop, right: ast.expr, is_negated: bool) -> Condition:
    if isinstance(right, ast.Tuple | ast.List | ast.Set):
        is_one = isinstance(op, ast.In) is not is_negated
        kind = ast.Eq if is_one else ast.NotEq
        return _joined([_comparison(left, kind, each) for each in right.elts], not is_one)
    return _comparison(left, _OPPOSITE[type(op)] if is_negated else type(op), right)


def _comparison(left: ast.expr, kind: type[ast.cmpop], right: ast.expr) -> Condition:
    a, b = _read(left), _read(right)
    if kind is ast.Eq:
        return _Equal(a, b)
    if kind is ast.NotEq:
        return _Unequal(a, b)
    return _AtMost(*((b, a) if kind in (ast.Gt, ast.GtE) else (a, b)), int(kind in (ast.Lt, ast.Gt)))


def _joined(parts: list[Condition], is_and: bool) -> Condition:
    return parts[0] if len(parts) == 1 else _All(parts) if is_and else _Any(parts)


@dataclass(frozen=True, slots=True)
class _All:
    parts: Sequence[Condition]

    def shorten(self, ranges: Ranges) -> None:
        for part in self.parts:
            part.shorten(ranges)


@dataclass(frozen=True, slots=True)
class _Any:
    parts: Sequence[Condition]

    def shorten(self, ranges: Ranges) -> None:
        found = [each for part in self.parts if narrow(part, each := dict(ranges))]
        if not found:
            raise EmptyError
        for name in ranges:
            ranges[name] = (min(each[name][0] for each in found), max(each[name][1] for each in found))


@dataclass(frozen=True, slots=True)
class _Equal:
    left: Expression
    right: Expression

    def shorten(self, ranges: Ranges) -> None:
        common = common_range(self.left.range_in(ranges), self.right.range_in(ranges))
        self.left.push(common, ranges)
        self.right.push(common, ranges)


@dataclass(frozen=True, slots=True)
class _Unequal:
    left: Expression
    right: Expression

    def shorten(self, ranges: Ranges) -> None:
        a, b = self.left.range_in(ranges), self.right.range_in(ranges)
        self.left.push(_without(a, b), ranges)
        self.right.push(_without(b, a), ranges)


@dataclass(frozen=True, slots=True)
class _AtMost:
    """``left + apart <= right``."""

    left: Expression
    right: Expression
    apart: int

    def shorten(self, ranges: Ranges) -> None:
        a, b = self.left.range_in(ranges), self.right.range_in(ranges)
        if a[1] + self.apart > b[0]:
            self.left.push(common_range(a, (-MOST, b[1] - self.apart)), ranges)
            self.right.push(common_range(b, (a[0] + self.apart, MOST)), ranges)


def _without(a: Range, b: Range) -> Range:
    """A range without the only number of another one, if that is an end of it."""
    if b[0] != b[1]:
        return a
    return common_range(a, (a[0] + (a[0] == b[0]), a[1] - (a[1] == b[0])))


# -- expressions ------------------------------------------------------------------------------------


class Expression(Protocol):
    """A number that is computed from sizes."""

    def range_in(self, ranges: Ranges) -> Range:
        """What it may be."""
        ...

    def push(self, result: Range, ranges: Ranges) -> None:
        """Shorten the ranges of its names, if it is in ``result``."""
        ...


def _read(node: ast.expr) -> Expression:
    match node:
        case ast.Constant(value=int(value)):
            return _Number((value, value))
        case ast.Name(id=name):
            return _Name(name)
        case ast.UnaryOp(operand=operand):
            return _Negative(_read(operand))
        case ast.BinOp(left=left, op=op, right=right):
            return _Operation(_read(left), _read(right), *OPERATIONS[type(op)])
        case ast.Call(func=ast.Name(id="abs"), args=[operand]):
            return _Absolute(_read(operand))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _Choice(tuple(_read(a) for a in args), name == "min")
    raise ValueError(f"{ast.unparse(node)!r} is not an expression of sizes")


@dataclass(frozen=True, slots=True)
class _Number:
    value: Range

    def range_in(self, ranges: Ranges) -> Range:
        return self.value

    def push(self, result: Range, ranges: Ranges) -> None:
        common_range(self.value, result)


@dataclass(frozen=True, slots=True)
class _Name:
    name: str

    def range_in(self, ranges: Ranges) -> Range:
        return ranges[self.name]

    def push(self, result: Range, ranges: Ranges) -> None:
        ranges[self.name] = common_range(ranges[self.name], result)


@dataclass(frozen=True, slots=True)
class _Negative:
    operand: Expression

    def range_in(self, ranges: Ranges) -> Range:
        low, high = self.operand.range_in(ranges)
        return -high, -low

    def push(self, result: Range, ranges: Ranges) -> None:
        self.operand.push((-result[1], -result[0]), ranges)


@dataclass(frozen=True, slots=True)
class _Absolute:
    operand: Expression

    def range_in(self, ranges: Ranges) -> Range:
        low, high = self.operand.range_in(ranges)
        return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))

    def push(self, result: Range, ranges: Ranges) -> None:
        low, _ = self.operand.range_in(ranges)
        self.operand.push((result[0] if low > -result[0] else -result[1], result[1]), ranges)


@dataclass(frozen=True, slots=True)
class _Choice:
    """``min`` or ``max``."""

    parts: Sequence[Expression]
    is_min: bool

    def range_in(self, ranges: Ranges) -> Range:
        found, choose = [p.range_in(ranges) for p in self.parts], min if self.is_min else max
        return choose(low for low, _ in found), choose(high for _, high in found)

    def push(self, result: Range, ranges: Ranges) -> None:
        found = [p.range_in(ranges) for p in self.parts]
        can_be = [low <= result[1] if self.is_min else high >= result[0] for low, high in found]
        of_others = (result[0], MOST) if self.is_min else (-MOST, result[1])
        for part, may in zip(self.parts, can_be, strict=True):
            part.push(result if may and sum(can_be) == 1 else of_others, ranges)


@dataclass(frozen=True, slots=True)
class _Operation:
    """Two expressions and an operator."""

    left: Expression
    right: Expression
    combine: Combine
    split: Split

    def range_in(self, ranges: Ranges) -> Range:
        low, high = self.combine(self.left.range_in(ranges), self.right.range_in(ranges))
        return max(low, -MOST), min(high, MOST)

    def push(self, result: Range, ranges: Ranges) -> None:
        a, b = self.left.range_in(ranges), self.right.range_in(ranges)
        of_left, of_right = self.split(a, b, result)
        if of_left != a:
            self.left.push(common_range(a, of_left), ranges)
        if of_right != b:
            self.right.push(common_range(b, of_right), ranges)
