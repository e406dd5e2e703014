"""Python's numbers in functions that Numba compiles: what Python does where 64 bits do not suffice.

Python's integers have no last one, its floats raise an error where NumPy's become infinite or NaN (a division by zero,
``math.log(0.0)``, ``10.0**400``), and ``int(x)`` of a float is exact. In Numba integers wrap around, and floats are
NumPy's. So operations on numbers that may be Python's are replaced by those below, which stop compiled code with
:class:`~opwright.backends.numba_jit.refusals.DoesNotFit` where Python may do something else; NumPy then runs the call.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic, overload, register_jitable
from numba.np.numpy_support import from_dtype

from opwright.backends.numba_jit.origins import Origin
from opwright.backends.numba_jit.refusals import DoesNotFit, bare, refused

__all__ = [
    "DIVISIONS",
    "Facts",
    "as_python",
    "between",
    "call_may_differ",
    "fitted",
    "in_place_of",
    "may_differ",
    "returned",
]

DIVISIONS = (operator.truediv, operator.floordiv, operator.mod)
# Numbers of these types do not come from Python.
_NUMPYS_OWN = (types.float32, types.complex64)


@dataclass(frozen=True)
class Facts:
    """What is known of an operation on two numbers.

    Attributes:
        origins: where they come from.
        fits: the result surely has less than 64 bits, if they are integers.
        constant: the second, where it is a constant.
    """

    origins: tuple[Origin, Origin]
    fits: bool
    constant: int | float | complex | None

    @property
    def divides(self) -> bool:
        """Whether the second is surely not zero."""
        return self.constant is not None and self.constant != 0


def may_differ(plain: Any, kinds: tuple[Any, Any], facts: Facts) -> bool:
    """Whether an operation on two numbers may give another one in Python or NumPy than in Numba."""
    if not _are_numbers(kinds):
        return False
    if plain is operator.pow and _are_integers(kinds) and not _is_positive_constant(kinds[1]):
        return True  # negative ones give a float in Python and an error in NumPy
    if Origin.NUMPY in facts.origins or any(types.unliteral(kind) in _NUMPYS_OWN for kind in kinds):
        return False
    if plain in DIVISIONS:
        return not facts.divides
    if _are_integers(kinds):
        return plain in (*_WITH_OVERFLOW, operator.pow, operator.lshift) and not facts.fits
    return plain is operator.pow


def _are_numbers(kinds: tuple[Any, ...]) -> bool:
    return bool(kinds) and all(isinstance(kind, types.Number | types.Boolean) for kind in map(types.unliteral, kinds))


def _are_integers(kinds: tuple[Any, ...]) -> bool:
    return all(isinstance(kind, types.Integer | types.Boolean) for kind in map(types.unliteral, kinds))


def _is_positive_constant(kind: Any) -> bool:
    return isinstance(kind, types.IntegerLiteral) and bool(kind.literal_value >= 0)


def as_python(plain: Any, kinds: tuple[Any, Any]) -> Callable[[Any, Any], Any]:
    """The operation, for code that Numba compiles, which stops where Python's numbers differ."""
    are_integers = _are_integers(kinds)
    if are_integers and types.uint64 in map(types.unliteral, kinds):
        raise refused("a Python integer has more than 63 bits")
    if plain in DIVISIONS:
        return _division(plain, are_integers)
    if not are_integers:
        return bare(_power_of_floats)
    if plain is operator.lshift:
        return bare(_shifted)
    return bare(_power) if plain is operator.pow else _within_64_bits(plain)


def _division(plain: Any, are_integers: bool) -> Callable[[Any, Any], Any]:
    def divided(a: Any, b: Any) -> Any:
        if b == 0:
            raise DoesNotFit
        return plain(a, b)

    def divided_integers(a: Any, b: Any) -> Any:
        if b == 0 or (b == -1 and a == _LEAST):
            raise DoesNotFit
        return plain(types.int64(a), types.int64(b))

    return bare(divided_integers if are_integers else divided)


_LEAST = -(2**63)


def _power_of_floats(a, b):  # type: ignore[no-untyped-def]
    result = a**b
    if result - result != 0 and a - a == 0 and b - b == 0:  # infinite or NaN, of finite numbers
        raise DoesNotFit
    return result


def _overflowing(instruction: str) -> Any:
    """An operation of int64, and whether it has overflown."""

    @intrinsic
    def operation(_context: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pair = getattr(builder, instruction)(*arguments)
            parts = [builder.extract_value(pair, i) for i in (0, 1)]
            return context.make_tuple(builder, signature.return_type, parts)

        return types.Tuple((types.int64, types.boolean))(types.int64, types.int64), generate

    return operation


_WITH_OVERFLOW = {
    operator.add: _overflowing("sadd_with_overflow"),
    operator.sub: _overflowing("ssub_with_overflow"),
    operator.mul: _overflowing("smul_with_overflow"),
}
_multiplied = _WITH_OVERFLOW[operator.mul]


def _within_64_bits(plain: Any) -> Callable[[Any, Any], Any]:
    with_overflow = _WITH_OVERFLOW[plain]

    def operation(a: Any, b: Any) -> Any:
        result, overflown = with_overflow(types.int64(a), types.int64(b))
        if overflown:
            raise DoesNotFit
        return result

    return bare(operation)


def _shifted(a, b):  # type: ignore[no-untyped-def]
    value, by = types.int64(a), types.int64(b)
    if by < 0 or by > 62 or (value << by) >> by != value:
        raise DoesNotFit
    return value << by


def _power(a, b):  # type: ignore[no-untyped-def]
    if b < 0:
        raise DoesNotFit
    result, square, left = types.int64(1), types.int64(a), types.int64(b)
    while left > 0:
        if left & 1:
            result, overflown = _multiplied(result, square)
            if overflown:
                raise DoesNotFit
        left >>= 1
        if left > 0:
            square, overflown = _multiplied(square, square)
            if overflown:
                raise DoesNotFit
    return result


def call_may_differ(function: Any, kinds: tuple[Any, ...]) -> bool:
    """Whether a call of a function with numbers of these types may do something else in Python or NumPy."""
    if not _are_numbers(kinds) or not hasattr(function, "__name__"):
        return False
    if function in (divmod, pow) or (function is round and len(kinds) == 2):
        return True
    if function in _WHOLE or _is_class_of_integers(function):
        return len(kinds) == 1 and isinstance(kinds[0], types.Float)
    return _is_of_math(function) and function not in _OF_ANY_FLOAT


_WHOLE = (int, round, math.floor, math.ceil, math.trunc)
# What they say of a float, or do with integers, is the same in both.
_OF_ANY_FLOAT = (
    math.isnan, math.isinf, math.isfinite, math.isclose, math.copysign, math.fabs, math.gcd, math.degrees, math.radians,
)  # fmt: skip


def _is_of_math(function: Any) -> bool:
    return getattr(function, "__module__", "") == math.__name__


def _is_class_of_integers(function: Any) -> bool:
    return isinstance(function, type) and issubclass(function, np.integer)


def in_place_of(function: Any, arguments: int) -> Callable[..., Any] | None:
    """What is called in place of a function, in code whose types are not known yet; None for most functions."""
    if function is round and arguments == 2:
        return _rounded
    if function in _WHOLE or _is_class_of_integers(function):
        return _call_of_one(function) if arguments == 1 else None
    if function is divmod or (_is_of_math(function) and function not in _OF_ANY_FLOAT):
        return _call_of_one(function) if arguments == 1 else _call_of_two(function) if arguments == 2 else None
    return None


@functools.cache
def _call_of_one(function: Any) -> Callable[[Any], Any]:
    def call(a: Any) -> Any:
        return function(a)

    makes = from_dtype(np.dtype(function)) if _is_class_of_integers(function) else types.int64
    fit = fitted(makes)

    @overload(call, prefer_literal=True)
    @bare
    def typed(a: Any) -> Any:
        if isinstance(types.unliteral(a), types.Integer) and (function is int or _is_class_of_integers(function)):
            return lambda a: makes(fit(a))
        if not call_may_differ(function, (a,)):
            return lambda a: function(a)
        is_integer = function in _WHOLE or _is_class_of_integers(function)
        return _whole(function, makes) if is_integer else _within_domain(function)

    return call


def between(kind: Any) -> tuple[float, float]:
    """The floats between which they fit into an integer type (but for -2**63, which counts as too small)."""
    return float(kind.minval) - 1, float(kind.maxval) + 1  # of 64 bits, the one is rounded away


def _whole(function: Any, kind: Any) -> Callable[[Any], Any]:
    """A function of a float that gives an integer."""
    low, high = between(kind)

    def whole(a: Any) -> Any:
        if not low < a < high:
            raise DoesNotFit
        return function(a)

    return bare(whole)


@functools.cache
def fitted(dtype: Any) -> Callable[..., Any]:
    """A number as one of ``dtype``, for code that Numba compiles; what does not fit stops it."""

    def fitting(value: Any) -> Any:
        return value

    @overload(fitting, prefer_literal=True)
    @bare
    def typed(value: Any) -> Any:
        if isinstance(value, types.Array | types.Boolean | types.Float | types.Complex):
            return lambda value: value if isinstance(value, types.Array) else dtype(value)
        low, high = int(dtype.minval), int(dtype.maxval)
        if isinstance(value, types.IntegerLiteral) and low <= value.literal_value <= high:
            return lambda value: dtype(value)
        kind = types.unliteral(value)
        if low <= kind.minval and kind.maxval <= high:
            return lambda value: dtype(value)
        low = max(low, int(kind.minval))
        high = min(high, int(kind.maxval))

        def checked(value: Any) -> Any:
            if value < low or value > high:
                raise DoesNotFit
            return dtype(value)

        return bare(checked)

    return fitting


def _within_domain(function: Any) -> Callable[[Any], Any]:
    def within_domain(a: Any) -> Any:
        result = function(a)
        if _is_error(result, a, 0.0):
            raise DoesNotFit
        return result

    return bare(within_domain)


@functools.cache
def _call_of_two(function: Any) -> Callable[[Any, Any], Any]:
    def call(a: Any, b: Any) -> Any:
        return function(a, b)

    @overload(call, prefer_literal=True)
    @bare
    def typed(a: Any, b: Any) -> Any:
        if not call_may_differ(function, (a, b)):
            return lambda a, b: function(a, b)
        if function is divmod:
            return _division(divmod, _are_integers((a, b)))

        def within_domain(a: Any, b: Any) -> Any:
            result = function(a, b)
            if _is_error(result, a, b):
                raise DoesNotFit
            return result

        return bare(within_domain)

    return call


def _rounded(a: Any, digits: Any) -> Any:
    """``round(a, digits)`` of a float, which is exact in Python; near the middle of two decimals, this stops."""
    raise NotImplementedError


@overload(_rounded)
@bare
def _typed_rounded(a: Any, digits: Any) -> Any:
    if not isinstance(digits, types.Integer) or not isinstance(a, types.Float):
        raise refused("round(x, n) of an integer may need more than 64 bits")
    if a != types.float64:
        return lambda a, digits: round(a, digits)  # of NumPy's own numbers, round is NumPy's

    def rounded(a: Any, digits: Any) -> Any:
        if digits < 0 or digits > _EXACT_POWERS:
            raise DoesNotFit
        scale = 1.0
        for _ in range(digits):
            scale *= 10.0
        scaled = a * scale
        if not -_LARGEST_SCALED < scaled < _LARGEST_SCALED:  # NaN among them
            raise DoesNotFit
        below = math.floor(scaled)
        part = scaled - below
        if abs(part - 0.5) <= abs(scaled) * 2.0**-50:
            raise DoesNotFit
        return math.copysign(abs(below + (part > 0.5)) / scale, a)

    return bare(rounded)


# Powers of ten up to this one are floats, and so is a quotient of an integer up to 2**49 by one, rounded once.
_EXACT_POWERS, _LARGEST_SCALED = 22, 2.0**49


@register_jitable
def _is_error(result: Any, a: Any, b: Any) -> Any:
    """Whether Python raises an error: for NaN of numbers, and for infinity of finite ones."""
    if result != result:
        return a == a and b == b
    return result - result != 0 and a - a == 0 and b - b == 0


def returned(value: Any) -> Any:
    """A result that is a float where Python may return an integer, which stops compiled code."""
    return value


@overload(returned)
@bare
def _typed_returned(value: Any) -> Any:
    if isinstance(value, types.Integer | types.Boolean):

        def stops(value: Any) -> Any:
            if value == value:
                raise DoesNotFit
            return types.float64(value)

        return bare(stops)
    if not isinstance(value, types.Float):
        return lambda value: value

    def checked(value: Any) -> Any:
        if value == math.floor(value):
            raise DoesNotFit
        return value

    return bare(checked)
