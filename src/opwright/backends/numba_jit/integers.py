"""Operations on integers in functions that Numba compiles, with NumPy's dtypes.

Numba computes ``int32 + int32`` in int64 and ``uint64 + 1`` in float64; in NumPy they are an int32 and a uint64, and a
Python integer takes the dtype of what it meets (NEP 50). Integers other than int64 are called narrow here.

A number that does not fit where NumPy would raise an error or wrap around makes compiled code stop with
:class:`DoesNotFit`, and NumPy runs the call. What cannot be decided is refused.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.core.registry import cpu_target
from numba.extending import overload
from numba.np.numpy_support import as_dtype, from_dtype

from opwright.backends.numba_jit.numpy_functions import if_divisible, power_of_array, refuses_powers
from opwright.backends.numba_jit.origins import Origin
from opwright.backends.numba_jit.python_numbers import Facts, as_python, between, fitted, may_differ
from opwright.backends.numba_jit.refusals import DoesNotFit, bare, refused

__all__ = [
    "CHECKED", "IN_PLACE", "POWERS", "SHIFTS", "TRUTH_VALUES", "UFUNCS", "binary", "element", "is_concerned",
    "is_narrow", "is_python", "is_special_power", "is_unclear", "may_divide_by_minus_one", "store_may_differ",
    "stored", "unary",
]  # fmt: skip


POWERS = "Numba computes powers of integers in float64"
TRUTH_VALUES = "Numba computes with truth values as with integers"
UFUNCS: dict[Any, np.ufunc] = {
    operator.add: np.add, operator.sub: np.subtract, operator.mul: np.multiply, operator.floordiv: np.floor_divide,
    operator.mod: np.remainder, operator.truediv: np.true_divide, operator.and_: np.bitwise_and,
    operator.or_: np.bitwise_or, operator.xor: np.bitwise_xor, operator.lshift: np.left_shift,
    operator.rshift: np.right_shift, operator.pow: np.power, operator.neg: np.negative, operator.pos: np.positive,
    operator.invert: np.invert,
}  # fmt: skip
SHIFTS = (operator.lshift, operator.rshift)
# Operations on int64 that are not the same for every pair of numbers.
CHECKED = (*SHIFTS, operator.floordiv, operator.mod, operator.truediv)
_OF_TRUTH_VALUES = (operator.and_, operator.or_, operator.xor)
IN_PLACE: dict[Any, Any] = {
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.ifloordiv: operator.floordiv, operator.imod: operator.mod, operator.itruediv: operator.truediv,
    operator.iand: operator.and_, operator.ior: operator.or_, operator.ixor: operator.xor,
    operator.ilshift: operator.lshift, operator.irshift: operator.rshift, operator.ipow: operator.pow,
}  # fmt: skip


def element(kind: Any) -> Any:
    """The type of an array's elements, or of a number."""
    kind = types.unliteral(kind)
    return types.unliteral(kind.dtype) if isinstance(kind, types.Array) else kind


def is_narrow(kind: Any) -> bool:
    """Whether these are integers other than int64."""
    return isinstance(element(kind), types.Integer) and element(kind) != types.int64


def is_python(kind: Any, origin: Origin) -> bool:
    """Whether it is a Python integer in NumPy."""
    if isinstance(kind, types.Array) or not isinstance(types.unliteral(kind), types.Integer):
        return False
    return origin is Origin.PYTHON or (origin is Origin.ARGUMENT and not is_narrow(kind))


def is_unclear(kind: Any, origin: Origin) -> bool:
    """Whether it is an int64 that may be a Python integer."""
    if isinstance(kind, types.Array) or not isinstance(types.unliteral(kind), types.Integer):
        return False
    return origin is Origin.UNKNOWN and not is_narrow(kind)


def _numpys(kind: Any, origin: Origin) -> Any:
    """What stands for a value where NumPy decides about dtypes."""
    return int if is_python(kind, origin) else as_dtype(element(kind))


@functools.cache
def binary(symbol: Any, facts: Facts) -> Callable[..., Any]:
    """An operation of two values with NumPy's dtypes, for code that Numba compiles."""
    plain = IN_PLACE.get(symbol, symbol)
    left, right = facts.origins

    def operation(a: Any, b: Any) -> Any:
        return symbol(a, b)

    @overload(operation, prefer_literal=True)
    @bare
    def typed(a: Any, b: Any) -> Any:
        if not _are_numbers(a, b):
            return lambda a, b: symbol(a, b)
        if isinstance(a, types.Boolean) and isinstance(b, types.Boolean) and plain not in _OF_TRUTH_VALUES:
            raise refused(TRUTH_VALUES)
        if plain is operator.pow and isinstance(element(a), types.Boolean):
            raise refused(TRUTH_VALUES)  # bits ** 2 is of another dtype than bits ** n
        if plain is operator.pow and refuses_powers(a, b):
            raise refused(POWERS)
        if not (is_concerned(a, left) or is_concerned(b, right)):
            return _on_int64_or_floats(symbol, plain, a, b, facts)
        if is_unclear(a, left) or is_unclear(b, right):
            raise refused("it meets a number that may be a Python integer or one of NumPy")
        taken = UFUNCS[plain].resolve_dtypes((_numpys(a, left), _numpys(b, right), None))
        if taken[-1].kind not in "iu":
            return _into_floats(symbol, plain, a, b, taken)
        return _on_integers(symbol, plain, a, b, from_dtype(taken[-1]), facts)

    return operation


def _on_int64_or_floats(symbol: Any, plain: Any, a: Any, b: Any, facts: Facts) -> Any:
    """An operation of numbers whose dtype is NumPy's in Numba, as Python or NumPy computes it."""
    if may_differ(plain, (a, b), facts):
        return as_python(plain, (a, b))
    if is_special_power(plain, a, b, facts.constant):
        return power_of_array(symbol, symbol is not plain, facts.constant)
    if not _are_integers(a, b):
        return lambda a, b: symbol(a, b)
    if isinstance(a, types.Array) or isinstance(b, types.Array):
        is_checked = plain in CHECKED
        return _on_integers(symbol, plain, a, b, types.int64, facts) if is_checked else lambda a, b: symbol(a, b)
    if types.uint64 in (types.unliteral(a), types.unliteral(b)):
        raise refused("a Python integer has more than 63 bits")
    if plain in SHIFTS:
        return _shift(plain, types.int64, Origin.NUMPY in facts.origins)
    as_int, computed = types.int64, _computed(plain, plain, types.int64, facts)
    return lambda a, b: computed(as_int(a), as_int(b))


def _computed(symbol: Any, plain: Any, result: Any, facts: Facts) -> Any:
    """An operation of integers, which stops where the least one is divided by -1: that ends the process in Numba."""
    return if_divisible(symbol) if may_divide_by_minus_one(plain, result, facts) else symbol


def may_divide_by_minus_one(plain: Any, dividend: Any, facts: Facts) -> bool:
    """Whether signed integers may be divided by -1."""
    is_signed = isinstance(element(dividend), types.Integer) and element(dividend).signed
    return plain in (operator.floordiv, operator.mod) and is_signed and facts.constant in (None, -1)


def is_special_power(plain: Any, base: Any, power: Any, constant: Any) -> bool:
    """Whether NumPy may compute a power of an array by another function than ``pow``."""
    if plain is not operator.pow or not isinstance(base, types.Array) or isinstance(power, types.Array):
        return False
    is_inexact = isinstance(element(base), types.Float | types.Complex)
    return is_inexact and (constant is None or constant in (0.5, -1))


def is_concerned(kind: Any, origin: Origin) -> bool:
    """Whether these are numbers whose dtype decides about that of a result."""
    return is_narrow(kind) and not is_python(kind, origin)


def _are_numbers(*kinds: Any) -> bool:
    return all(isinstance(element(kind), types.Number | types.Boolean) for kind in kinds)


def _are_integers(*kinds: Any) -> bool:
    return all(isinstance(element(kind), types.Integer) for kind in kinds)


def _into_floats(symbol: Any, plain: Any, a: Any, b: Any, taken: Any) -> Any:
    """An operation whose result is no integer, which is Numba's if the dtype is NumPy's."""
    _require_result(symbol if isinstance(a, types.Array) else plain, a, b, taken[-1])
    return lambda a, b: symbol(a, b)


def _on_integers(symbol: Any, plain: Any, a: Any, b: Any, result: Any, facts: Facts) -> Any:
    """An operation on integers in NumPy's dtype ``result``; Python integers must fit into it."""
    if plain is operator.pow and not _cannot_be_negative(b):
        raise refused("it is raised to a power that may be negative, which NumPy refuses")
    fit = fitted(result)
    if not (isinstance(a, types.Array) or isinstance(b, types.Array)):
        if plain in SHIFTS:
            return _shift(plain, result)
        # Both are computed in 64 bits; what exceeds the dtype is cut off as in NumPy.
        wide = types.int64 if result.signed else types.uint64
        of_wide = _computed(plain, plain, wide, facts)
        return lambda a, b: result(of_wide(wide(fit(a)), wide(fit(b))))
    if plain in SHIFTS:
        raise refused("an array is shifted")
    _require_result(symbol, _with_element(a, result), _with_element(b, result), as_dtype(result))
    computed = _computed(symbol, plain, result, facts)
    if isinstance(a, types.Array) and isinstance(b, types.Array):
        return lambda a, b: computed(a, b)
    if isinstance(a, types.Array):
        return lambda a, b: computed(a, fit(b))
    return lambda a, b: computed(fit(a), b)


def _with_element(kind: Any, element: Any) -> Any:
    return kind if isinstance(kind, types.Array) else element


def _require_result(symbol: Any, a: Any, b: Any, expected: np.dtype[Any]) -> None:
    """Refuse an operation whose dtype is not NumPy's in Numba."""
    signature = cpu_target.typing_context.resolve_function_type(symbol, (a, b), {})
    is_in_place = symbol in IN_PLACE and isinstance(a, types.Array)
    if signature is None or (not is_in_place and element(signature.return_type) != from_dtype(expected)):
        raise refused(f"NumPy's result is of {expected}, Numba's is not")


def _cannot_be_negative(kind: Any) -> bool:
    if isinstance(kind, types.IntegerLiteral):
        return bool(kind.literal_value >= 0)
    return isinstance(element(kind), types.Integer) and not element(kind).signed


def _shift(plain: Any, result: Any, is_numpys: bool = True) -> Any:
    """A shift by any number of bits: NumPy's is 0 or -1 past the width. Python's may need more bits, or be refused."""
    fit, bits = fitted(result), result.bitwidth
    wide = types.int64 if result.signed else types.uint64
    if plain is operator.lshift:

        def shifted(a: Any, b: Any) -> Any:
            value, by = wide(fit(a)), types.int64(fit(b))
            if 0 <= by < bits:
                return result(value << wide(by))
            if not is_numpys:
                raise DoesNotFit
            return result(0)
    else:

        def shifted(a: Any, b: Any) -> Any:
            value, by = wide(fit(a)), types.int64(fit(b))
            if 0 <= by < bits:
                return result(value >> wide(by))
            if by < 0 and not is_numpys:
                raise DoesNotFit
            return result(-1 if value < 0 else 0)

    return bare(shifted)


@functools.cache
def unary(symbol: Any, origin: Origin) -> Callable[..., Any]:
    """An operation of one value with NumPy's dtype."""

    def operation(a: Any) -> Any:
        return symbol(a)

    @overload(operation)
    @bare
    def typed(a: Any) -> Any:
        if isinstance(a, types.Boolean):
            raise refused(TRUTH_VALUES)
        if not is_concerned(a, origin) or isinstance(a, types.Array):
            return lambda a: symbol(a)
        result = types.unliteral(a)
        wide = types.int64 if result.signed else types.uint64
        return lambda a: result(symbol(wide(a)))

    return operation


def stored(target: Any, value: Any) -> Any:
    """A number as it is stored into an array; one that does not fit is NumPy's to refuse or to cut off."""
    return value


@overload(stored, prefer_literal=True)
@bare
def _typed_stored(target: Any, value: Any) -> Any:
    kind = types.unliteral(value)
    if store_may_differ(target, kind):
        low, high = between(element(target))

        def checked(target: Any, value: Any) -> Any:
            if not low < value < high:
                raise DoesNotFit
            return value

        return bare(checked)
    if not (isinstance(target, types.Array) and _are_integers(target, kind)) or kind == element(target):
        return lambda target, value: value
    if isinstance(kind, types.Array):
        return lambda target, value: value
    fit = fitted(element(target))
    return lambda target, value: fit(value)


def store_may_differ(target: Any, value: Any) -> bool:
    """Whether it is a float stored among integers, into which it may not fit."""
    return _are_integers(target) and isinstance(types.unliteral(value), types.Float)
