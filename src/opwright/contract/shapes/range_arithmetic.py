"""Arithmetic of ranges of integers: of a result from its operands, and of the operands from a result."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

__all__ = ["MOST", "OPERATIONS", "Combine", "EmptyError", "FractionError", "Range", "Split", "common_range"]

# From the first number to the last one, both included.
Range = tuple[int, int]
# The range of a result, from those of the operands.
Combine = Callable[[Range, Range], Range]
# The ranges of the operands, from what they were and that of the result.
Split = Callable[[Range, Range, Range], tuple[Range, Range]]

# Ranges end here: far past every size, and past products of several sizes.
MOST = 1 << 200


class EmptyError(Exception):
    """A range has no number left."""


class FractionError(Exception):
    """An exponent may be negative, and these ranges are of integers."""


def common_range(a: Range, b: Range) -> Range:
    low, high = max(a[0], b[0]), min(a[1], b[1])
    if low > high:
        raise EmptyError
    return low, high


def _ends(a: Range, b: Range, operation: Callable[[int, int], int]) -> Range:
    found = [operation(x, y) for x in a for y in b]
    return min(found), max(found)


def _divided(a: Range, b: Range) -> Range:
    found = [_ends(a, part, operator.floordiv) for part in _divisors(b)]
    return min(low for low, _ in found), max(high for _, high in found)


def _divisors(b: Range) -> list[Range]:
    """The negative numbers of a range and the positive ones: a condition that divides by zero does not hold."""
    parts = [(b[0], min(b[1], -1)), (max(b[0], 1), b[1])]
    found = [(low, high) for low, high in parts if low <= high]
    if not found:
        raise EmptyError
    return found


def _remainder(a: Range, b: Range) -> Range:
    parts = _divisors(b)
    if a[0] == a[1] and b[0] == b[1]:
        return a[0] % b[0], a[0] % b[0]
    low, high = parts[0][0], parts[-1][1]
    if low > 0 and a[0] >= 0:
        return (a[0] if a[1] < low else 0), min(a[1], high - 1)
    return min(low + 1, 0), max(high - 1, 0)


def _power(a: Range, b: Range) -> Range:
    if b[0] < 0:
        raise FractionError
    if a[0] < 0:
        most = _bounded_power(max(abs(a[0]), abs(a[1]), 1), b[1])
        return -most, most
    return _bounded_power(a[0], b[1] if a[0] == 0 else b[0]), max(_bounded_power(a[1], b[1]), int(b[0] == 0))


def _bounded_power(base: int, exponent: int) -> int:
    """A power of numbers from 0 on; MOST if it is larger."""
    if base > 1 and exponent * (base.bit_length() - 1) >= MOST.bit_length():
        return MOST
    return min(base**exponent, MOST) if base > 1 else int(base == 1 or exponent == 0)


def _sum_parts(a: Range, b: Range, result: Range) -> tuple[Range, Range]:
    return (result[0] - b[1], result[1] - b[0]), (result[0] - a[1], result[1] - a[0])


def _difference_parts(a: Range, b: Range, result: Range) -> tuple[Range, Range]:
    return (result[0] + b[0], result[1] + b[1]), (a[0] - result[1], a[1] - result[0])


def _product_parts(a: Range, b: Range, result: Range) -> tuple[Range, Range]:
    return _factor(a, b, result), _factor(b, a, result)


def _factor(a: Range, b: Range, result: Range) -> Range:
    """What a factor may be, of which the other one is ``b``."""
    if not result[0] <= 0 <= result[1] and b[0] == 0:
        b = (1, b[1])
    if b[0] < 1 or b[1] < b[0]:
        return a
    low, high = result
    return -((-low) // (b[1] if low > 0 else b[0])), high // (b[0] if high >= 0 else b[1])


def _quotient_parts(a: Range, b: Range, result: Range) -> tuple[Range, Range]:
    if b[0] < 0:
        return a, b
    b = common_range(b, (1, MOST))
    low, high = result
    of_left = (low * (b[0] if low >= 0 else b[1]), (high + 1) * (b[1] if high >= 0 else b[0]) - 1)
    if a[0] >= 0 and high >= 0:
        b = (max(b[0], a[0] // (high + 1) + 1), min(b[1], a[1] // low) if low > 0 else b[1])
    return of_left, b


def _remainder_parts(a: Range, b: Range, result: Range) -> tuple[Range, Range]:
    if b[0] < 0:
        return a, b
    b = common_range(b, (max(1, result[0] + 1), MOST))
    if a[0] < 0:
        return a, b
    low, high = max(a[0], result[0]), a[1]
    if a[1] < b[0]:
        return (low, min(high, result[1])), b
    if b[0] == b[1] and result[0] == result[1]:  # the first and the last number with this remainder
        low += (result[0] - low) % b[0]
        high -= (high - result[0]) % b[0] if high < MOST else 0
    return (low, high), b


def _power_parts(a: Range, b: Range, result: Range) -> tuple[Range, Range]:
    if a[0] < 0 or b[0] < 0 or result[1] >= MOST:
        return a, b
    if b[0] >= 1:
        a = (a[0], min(a[1], _last(lambda base: _bounded_power(base, b[0]) <= result[1], min(a[1], result[1]))))
    if a[0] >= 2:
        last = _last(lambda exponent: _bounded_power(a[0], exponent) <= result[1], min(b[1], 200))
        first = 1 + _last(lambda exponent: _bounded_power(a[1], exponent) < result[0], min(b[1], 200))
        b = (max(b[0], first), min(b[1], last))
    return a, b


def _last(holds: Callable[[int], bool], most: int) -> int:
    """The last number from 0 to ``most`` for which what holds of small numbers holds; -1 if there is none."""
    low, high = -1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


OPERATIONS: dict[type[ast.operator], tuple[Combine, Split]] = {
    ast.Add: (lambda a, b: (a[0] + b[0], a[1] + b[1]), _sum_parts),
    ast.Sub: (lambda a, b: (a[0] - b[1], a[1] - b[0]), _difference_parts),
    ast.Mult: (lambda a, b: _ends(a, b, operator.mul), _product_parts),
    ast.FloorDiv: (_divided, _quotient_parts),
    ast.Mod: (_remainder, _remainder_parts),
    ast.Pow: (_power, _power_parts),
}
