"""Functions of NumPy for which Numba gives something else than NumPy for some values, which stop compiled code.

They were found by calling what Numba has of NumPy with NaN, infinities, negative and very large numbers, and no
elements (Numba 0.68, NumPy 2.4): ``np.median`` ignores NaN, ``np.bincount`` writes outside of its result for negative
numbers, ``np.power`` computes integers in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from opwright.backends.numba.refusals import DoesNotFit, bare, refused

__all__ = ["in_place_of_numpys", "numpys_call_may_differ", "numpys_own", "refuses_powers"]

# Those that are the same for finite numbers.
_OF_FINITE: tuple[Any, ...] = (np.median, np.floor_divide, np.power, np.histogram, np.arange)
# Their order is not NumPy's.
_REFUSED: tuple[Any, ...] = (np.partition, np.argpartition)
# NumPy's sum of squares overflows, and loses small numbers; Numba's is scaled.
_LEAST_NORM, _LARGEST_NORM = 1e-150, 1e150


def numpys_call_may_differ(function: Any, kinds: tuple[Any, ...]) -> bool:
    """Whether a call with arguments of these types may give something else than NumPy."""
    elements = [_element(kind) for kind in kinds]
    if function is np.bincount:
        return True
    if any(function is one for one in _REFUSED):
        return True
    if any(function is one for one in (*_OF_FINITE, np.linalg.norm)):
        return function is np.power or any(isinstance(e, types.Float | types.Complex) for e in elements)
    return False


def _element(kind: Any) -> Any:
    return types.unliteral(kind.dtype if isinstance(kind, types.Array) else kind)


def in_place_of_numpys(function: Any, arguments: int) -> Callable[..., Any] | None:
    """What is called in place of one of these functions; None for others."""
    if function is np.bincount:
        return _bincount if arguments == 1 else None
    if function is np.linalg.norm:
        return _norm if arguments == 1 else None
    if any(function is one for one in _OF_FINITE):
        return _of_finite(function, arguments) if arguments in (1, 2, 3) else None
    return None


def numpys_own(function: Any) -> Any:
    """The function of NumPy that stands behind one of these; any other is itself."""
    return _STANDS_FOR.get(function, function) if callable(function) else function


_STANDS_FOR: dict[Any, Any] = {}


def refuses_powers(left: Any, right: Any) -> bool:
    """Whether these are integers of which one is an array, and the power is no constant: Numba has them in float64."""
    if not (isinstance(left, types.Array) or isinstance(right, types.Array)):
        return False
    if not all(isinstance(_element(kind), types.Integer) for kind in (left, right)):
        return False
    return not (isinstance(right, types.IntegerLiteral) and right.literal_value >= 0)


@functools.cache
def _of_finite(function: Any, arguments: int) -> Callable[..., Any]:
    def call(a: Any, b: Any = None, c: Any = None) -> Any:
        raise NotImplementedError

    @overload(call)
    @bare
    def typed(a: Any, b: Any = None, c: Any = None) -> Any:
        if function is np.power and isinstance(_element(a), types.Integer):
            raise refused("np.power computes integers in float64; write a ** n")
        if arguments == 1:

            def one(a: Any, b: Any = None, c: Any = None) -> Any:
                if not _is_finite(a):
                    raise DoesNotFit
                return function(a)

            return bare(one)
        if arguments == 2:

            def two(a: Any, b: Any = None, c: Any = None) -> Any:
                if not (_is_finite(a) and _is_finite(b)):
                    raise DoesNotFit
                return function(a, b)

            return bare(two)

        def three(a: Any, b: Any = None, c: Any = None) -> Any:
            if not (_is_finite(a) and _is_finite(b) and _is_finite(c)):
                raise DoesNotFit
            return function(a, b, c)

        return bare(three)

    _STANDS_FOR[call] = function
    return call


def _is_finite(value: Any) -> bool:
    """Whether a number, or each element of an array, is finite; True for what is neither."""
    raise NotImplementedError


@overload(_is_finite)
@bare
def _typed_is_finite(value: Any) -> Any:
    if isinstance(value, types.Float | types.Complex):
        return lambda value: value - value == 0
    if not (isinstance(value, types.Array) and isinstance(_element(value), types.Float | types.Complex)):
        return lambda value: True

    def are_finite(value: Any) -> Any:
        for each in value.flat:  # noqa: SIM110  # Numba compiles no generators
            if each - each != 0:
                return False
        return True

    return bare(are_finite)


def _bincount(values: Any) -> Any:
    raise NotImplementedError


@overload(_bincount)
@bare
def _typed_bincount(values: Any) -> Any:
    def checked(values: Any) -> Any:
        for value in values:
            if value < 0:
                raise DoesNotFit
        return np.bincount(values)

    return bare(checked)


def _norm(values: Any) -> Any:
    raise NotImplementedError


@overload(_norm)
@bare
def _typed_norm(values: Any) -> Any:
    def checked(values: Any) -> Any:
        norm = np.linalg.norm(values)
        if norm != 0 and not _LEAST_NORM < norm < _LARGEST_NORM:
            raise DoesNotFit
        return norm

    return bare(checked)


_STANDS_FOR |= {_bincount: np.bincount, _norm: np.linalg.norm}
