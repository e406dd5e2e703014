"""Operations on integers in functions that Numba compiles, with NumPy's dtypes.

Numba computes ``int32 + int32`` in int64 and ``uint64 + 1`` in float64; in NumPy they are an int32 and a uint64, and a
Python integer takes the dtype of what it meets (NEP 50). Integers other than int64 are called narrow here.

A number that does not fit where NumPy would raise an error or wrap around makes compiled code stop with
:class:`DoesNotFit`, and NumPy runs the call. What cannot be decided is refused.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numba.core import errors
from numba.core.registry import cpu_target
from numba.extending import overload
from numba.np.numpy_support import as_dtype, from_dtype

from opwright.backends.numba.origins import Origin

__all__ = [
    "CHECKED", "IN_PLACE", "SHIFTS", "TRUTH_VALUES", "UFUNCS", "DoesNotFit", "Found", "binary", "element",
    "is_concerned", "is_narrow", "is_python", "is_unclear", "note_write", "noting", "refused", "stored", "unary",
]  # fmt: skip


class DoesNotFit(OverflowError):
    """Compiled code met an integer that does not fit into the dtype that NumPy computes with."""


TRUTH_VALUES = "Numba computes with truth values as with integers"


class _Refused(errors.NumbaError):
    """Narrow integers are used in a way that Numba computes otherwise than NumPy."""


@dataclass
class Found:
    """What the passes have noticed in a function and those that it calls.

    Attributes:
        reasons: where narrow integers are used otherwise than in NumPy, each with its line.
        writes: whether operations were replaced, which may stop, in one that may write to what it was given.
    """

    reasons: list[str]
    writes: bool = False


_found: contextvars.ContextVar[Found | None] = contextvars.ContextVar("opwright_narrow_integers", default=None)


@contextlib.contextmanager
def noting() -> Iterator[Found]:
    """Note what functions that are compiled in this thread do with narrow integers."""
    found = Found([])
    token = _found.set(found)
    try:
        yield found
    finally:
        _found.reset(token)


def refused(reason: str) -> _Refused:
    """The error of a use of narrow integers that differs in Numba, which is noted."""
    found = _found.get()
    if found is not None:
        found.reasons.append(reason)
    return _Refused(reason)


def note_write() -> None:
    """Note that compiled code may write to what it was given."""
    found = _found.get()
    if found is not None:
        found.writes = True


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


def _bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function without annotations: Numba compares those of an overload and of what implements it."""
    function.__annotations__ = {}
    return function


@functools.cache
def binary(symbol: Any, left: Origin, right: Origin) -> Callable[..., Any]:
    """An operation of two values with NumPy's dtypes, for code that Numba compiles."""
    plain = IN_PLACE.get(symbol, symbol)

    def operation(a: Any, b: Any) -> Any:
        return symbol(a, b)

    @overload(operation, prefer_literal=True)
    @_bare
    def typed(a: Any, b: Any) -> Any:
        if not _are_numbers(a, b):
            return lambda a, b: symbol(a, b)
        if isinstance(a, types.Boolean) and isinstance(b, types.Boolean) and plain not in _OF_TRUTH_VALUES:
            raise refused(TRUTH_VALUES)
        if plain is operator.pow and isinstance(element(a), types.Boolean):
            raise refused(TRUTH_VALUES)  # bits ** 2 is of another dtype than bits ** n
        if not (is_concerned(a, left) or is_concerned(b, right)):
            if not (_are_integers(a, b) and plain in CHECKED):
                return lambda a, b: symbol(a, b)
            if isinstance(a, types.Array) or isinstance(b, types.Array):
                return _on_integers(symbol, plain, a, b, types.int64)
            is_numpys = left is right is Origin.NUMPY
            return _shift(plain, types.int64, is_numpys) if plain in SHIFTS else _division(plain, is_numpys)
        if is_python(a, left) and is_python(b, right):
            as_int = types.int64
            return lambda a, b: plain(as_int(a), as_int(b))
        if is_unclear(a, left) or is_unclear(b, right):
            raise refused("it meets a number that may be a Python integer or one of NumPy")
        taken = UFUNCS[plain].resolve_dtypes((_numpys(a, left), _numpys(b, right), None))
        if taken[-1].kind not in "iu":
            return _into_floats(symbol, plain, a, b, taken)
        return _on_integers(symbol, plain, a, b, from_dtype(taken[-1]))

    return operation


def is_concerned(kind: Any, origin: Origin) -> bool:
    """Whether these are numbers whose dtype decides about that of a result."""
    return is_narrow(kind) and not is_python(kind, origin)


def _are_numbers(*kinds: Any) -> bool:
    return all(isinstance(element(kind), types.Number | types.Boolean) for kind in kinds)


def _are_integers(*kinds: Any) -> bool:
    return all(isinstance(element(kind), types.Integer) for kind in kinds)


def _division(plain: Any, is_numpys: bool) -> Any:
    """A division of int64; Python's integers are not divided by zero."""

    def divided(a: Any, b: Any) -> Any:
        if b == 0 and not is_numpys:
            raise DoesNotFit
        return plain(types.int64(a), types.int64(b))

    return _bare(divided)


def _into_floats(symbol: Any, plain: Any, a: Any, b: Any, taken: Any) -> Any:
    """An operation whose result is no integer, which is Numba's if the dtype is NumPy's."""
    _require_result(symbol if isinstance(a, types.Array) else plain, a, b, taken[-1])
    return lambda a, b: symbol(a, b)


def _on_integers(symbol: Any, plain: Any, a: Any, b: Any, result: Any) -> Any:
    """An operation on integers in NumPy's dtype ``result``; Python integers must fit into it."""
    if plain is operator.pow and not _cannot_be_negative(b):
        raise refused("it is raised to a power that may be negative, which NumPy refuses")
    fit = _fitted(result)
    if not (isinstance(a, types.Array) or isinstance(b, types.Array)):
        if plain in SHIFTS:
            return _shift(plain, result)
        # Both are computed in 64 bits; what exceeds the dtype is cut off as in NumPy.
        wide = types.int64 if result.signed else types.uint64
        return lambda a, b: result(plain(wide(fit(a)), wide(fit(b))))
    if plain in SHIFTS:
        raise refused("an array is shifted")
    _require_result(symbol, _with_element(a, result), _with_element(b, result), as_dtype(result))
    if isinstance(a, types.Array) and isinstance(b, types.Array):
        return lambda a, b: symbol(a, b)
    if isinstance(a, types.Array):
        return lambda a, b: symbol(a, fit(b))
    return lambda a, b: symbol(fit(a), b)


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
    fit, bits = _fitted(result), result.bitwidth
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

    return _bare(shifted)


@functools.cache
def _fitted(dtype: Any) -> Callable[..., Any]:
    """A number as one of ``dtype``, for code that Numba compiles; what does not fit stops it."""

    def fitted(value: Any) -> Any:
        return value

    @overload(fitted, prefer_literal=True)
    @_bare
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

        return _bare(checked)

    return fitted


@functools.cache
def unary(symbol: Any, origin: Origin) -> Callable[..., Any]:
    """An operation of one value with NumPy's dtype."""

    def operation(a: Any) -> Any:
        return symbol(a)

    @overload(operation)
    @_bare
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
@_bare
def _typed_stored(target: Any, value: Any) -> Any:
    kind = types.unliteral(value)
    if not (isinstance(target, types.Array) and _are_integers(target, kind)) or kind == element(target):
        return lambda target, value: value
    if isinstance(kind, types.Array):
        return lambda target, value: value
    fit = _fitted(element(target))
    return lambda target, value: fit(value)
