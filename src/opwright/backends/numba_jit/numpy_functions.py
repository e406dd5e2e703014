"""Functions of NumPy for which Numba gives something else than NumPy for some values.

They were found by calling Numba's functions of NumPy with NaN, infinities, zeros of both signs, the least and the
largest numbers of each dtype, and arrays without elements (Numba 0.68, NumPy 2.4): ``np.median`` ignores NaN,
``np.bincount`` writes outside of its result for negative numbers, ``np.remainder(-2**63, -1)`` ends the process.
``python -m tests.backends.numba_jit.numpy_calls`` repeats the search.

Each has a rule: for which types of elements it differs, and what is compiled in its place. The replacement gives
NumPy's values, or raises :class:`DoesNotFit`. A function without a replacement is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from opwright.backends.numba_jit.refusals import DoesNotFit, bare, refused

__all__ = [
    "if_divisible",
    "in_place_of_numpys",
    "numpys_call_may_differ",
    "numpys_own",
    "power_of_array",
    "refuses_powers",
]


@dataclass(frozen=True)
class _Rule:
    """How a function is compiled whose values are not always NumPy's.

    Attributes:
        differs: whether they differ for elements of this type.
        compiled: what to compile in place of the function, for such elements and that many arguments; ``None`` where
            nothing has NumPy's values.
    """

    differs: Callable[[Any], bool]
    compiled: Callable[[Any, int], Callable[..., Any] | None] = lambda element, count: None


def numpys_call_may_differ(function: Any, kinds: tuple[Any, ...]) -> bool:
    """Whether a call with arguments of these types may give something else than NumPy. A method is given by its name,
    and its array is the first argument."""
    rule = _rule_of(getattr(np, function, None) if isinstance(function, str) else function)
    return rule is not None and any(rule.differs(_element(kind)) for kind in kinds)


def _rule_of(function: Any) -> _Rule | None:
    return _RULES.get(function) if callable(function) else None


def _element(kind: Any) -> Any:
    return types.unliteral(kind.dtype if isinstance(kind, types.Array) else kind)


def in_place_of_numpys(function: Any, arguments: int) -> Callable[..., Any] | None:
    """What is called in place of one of these functions; None for others."""
    return _replacement(function, arguments) if _rule_of(function) and 1 <= arguments <= 3 else None


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
def _replacement(function: Any, count: int) -> Callable[..., Any]:
    def call(a: Any, b: Any = None, c: Any = None) -> Any:
        raise NotImplementedError

    @overload(call)
    @bare
    def typed(a: Any, b: Any = None, c: Any = None) -> Any:
        elements = [_element(kind) for kind in (a, b, c)[:count]]
        rule, compiled = _RULES[function], function
        if differing := [element for element in elements if rule.differs(element)]:
            compiled = rule.compiled(differing[0], count)
            if compiled is None:
                raise refused(f"{function.__name__} of {differing[0]} gives something else than NumPy for some values")
        calls = {
            1: lambda a, b=None, c=None: compiled(a),
            2: lambda a, b=None, c=None: compiled(a, b),
            3: lambda a, b=None, c=None: compiled(a, b, c),
        }
        return calls[count]

    _STANDS_FOR[call] = function
    return call


def _is_float(element: Any) -> bool:
    return isinstance(element, types.Float)


def _is_inexact(element: Any) -> bool:
    return isinstance(element, types.Float | types.Complex)


def _is_integer(element: Any) -> bool:
    return isinstance(element, types.Integer)


def _is_signed(element: Any) -> bool:
    return _is_integer(element) and element.signed


def _is_anything(element: Any) -> bool:
    return True


def _each_passes(test: Callable[[Any], Any], concerns: Callable[[Any], bool]) -> Callable[..., Any]:
    """Whether a number, or each element of an array, passes a test; True for other types."""

    def passes(value: Any) -> Any:
        raise NotImplementedError

    test = register_jitable(test)

    @overload(passes)
    @bare
    def typed(value: Any) -> Any:
        if not concerns(_element(value)):
            return lambda value: True
        if not isinstance(value, types.Array):
            return lambda value: test(value)

        def all_pass(value: Any) -> Any:
            passed = True
            for each in value.flat:
                passed &= test(each)
            return passed

        def all_of_contiguous_pass(value: Any) -> Any:
            passed, elements = True, value.reshape(value.size)
            for i in range(elements.size):  # without an early end, so that LLVM vectorizes it
                passed &= test(elements[i])
            return passed

        return bare(all_of_contiguous_pass if value.layout == "C" else all_pass)

    return passes


_is_finite = _each_passes(bare(lambda value: value - value == 0), _is_inexact)
_is_a_number = _each_passes(bare(lambda value: value == value), _is_inexact)
_is_not_minus_one = _each_passes(bare(lambda value: value != -1), _is_signed)
_is_not_negative = _each_passes(bare(lambda value: value >= 0), _is_integer)


def _if_finite(function: Any) -> Callable[[Any, int], Callable[..., Any]]:
    """The function itself, where all arguments are finite."""

    def one(a: Any) -> Any:
        if not _is_finite(a):
            raise DoesNotFit
        return function(a)

    def two(a: Any, b: Any) -> Any:
        if not (_is_finite(a) and _is_finite(b)):
            raise DoesNotFit
        return function(a, b)

    def three(a: Any, b: Any, c: Any) -> Any:
        if not (_is_finite(a) and _is_finite(b) and _is_finite(c)):
            raise DoesNotFit
        return function(a, b, c)

    made = [register_jitable(bare(each)) for each in (one, two, three)]
    return lambda element, count: made[count - 1]


@functools.cache
def if_divisible(function: Any) -> Callable[..., Any]:
    """A division of signed integers, where nothing is divided by -1: the least integer has no quotient."""

    def divided(a: Any, b: Any) -> Any:
        if not _is_not_minus_one(b):
            raise DoesNotFit
        return function(a, b)

    return register_jitable(bare(divided))


@functools.cache
def power_of_array(power: Any, is_in_place: bool, constant: Any) -> Callable[..., Any]:
    """``a ** b`` of an array of floats and a number, which NumPy computes as ``sqrt(a)`` if it is 0.5, and as ``1 / a``
    if it is -1: (-inf) ** 0.5 is NaN then."""
    if constant is None:

        def raised(a: Any, b: Any) -> Any:
            if b == 0.5 or b == -1:
                raise DoesNotFit
            return power(a, b)

        return bare(raised)
    if is_in_place:
        raise refused(f"NumPy computes x ** {constant} by another function than pow")
    return bare((lambda a, b: np.sqrt(a)) if constant == 0.5 else (lambda a, b: np.reciprocal(a)))


@register_jitable
def _remainder(a, b):  # type: ignore[no-untyped-def]
    return a % b  # whose zeros have NumPy's signs; those of np.remainder do not


@register_jitable
def _floor_and_remainder(a, b):  # type: ignore[no-untyped-def]
    return a // b, a % b


def _divided(of_integers: Any, of_floats: Any) -> Callable[[Any, int], Callable[..., Any] | None]:
    integers = if_divisible(of_integers)

    def compiled(element: Any, count: int) -> Callable[..., Any] | None:
        if count != 2 or isinstance(element, types.Complex):
            return None
        return integers if _is_integer(element) else of_floats

    return compiled


@register_jitable
def _clipped(a, low, high):  # type: ignore[no-untyped-def]
    if not (_is_a_number(low) and _is_a_number(high)):
        raise DoesNotFit
    return np.clip(a, low, high)


@register_jitable
def _bincount(values):  # type: ignore[no-untyped-def]
    if not _is_not_negative(values):
        raise DoesNotFit
    return np.bincount(values)


# NumPy's sum of squares overflows, and loses small numbers; Numba's is scaled.
_LEAST_NORM, _LARGEST_NORM = 1e-150, 1e150


@register_jitable
def _norm(values):  # type: ignore[no-untyped-def]
    norm = np.linalg.norm(values)
    if norm != 0 and not _LEAST_NORM < norm < _LARGEST_NORM:
        raise DoesNotFit
    return norm


def _sign(element: Any, count: int) -> Callable[..., Any] | None:
    """NumPy's sign of -0.0 is 0.0."""
    if count != 1 or not _is_float(element):
        return None
    zero = np.dtype(str(element)).type(0)
    return register_jitable(bare(lambda a: np.sign(a) + zero))


def _only(function: Callable[..., Any], arguments: int) -> Callable[[Any, int], Callable[..., Any] | None]:
    return lambda element, count: function if count == arguments else None


def _is_inexact_or_signed(element: Any) -> bool:
    return _is_inexact(element) or _is_signed(element)


def _power(element: Any, count: int) -> Callable[..., Any] | None:
    """Powers of integers are computed in float64."""
    return None if _is_integer(element) else _power_of_finite(element, count)


_power_of_finite, _floor_of_finite = _if_finite(np.power), _if_finite(np.floor_divide)
_RULES: dict[Any, _Rule] = {
    np.median: _Rule(_is_inexact, _if_finite(np.median)),
    np.histogram: _Rule(_is_inexact, _if_finite(np.histogram)),
    np.arange: _Rule(_is_inexact, _if_finite(np.arange)),
    np.power: _Rule(_is_anything, _power),
    np.floor_divide: _Rule(_is_inexact_or_signed, _divided(np.floor_divide, _floor_of_finite(None, 2))),
    np.remainder: _Rule(_is_inexact_or_signed, _divided(np.remainder, _remainder)),
    np.divmod: _Rule(_is_inexact_or_signed, _divided(np.divmod, _floor_and_remainder)),
    np.clip: _Rule(_is_inexact, _only(_clipped, 3)),
    np.bincount: _Rule(_is_anything, _only(_bincount, 1)),
    np.linalg.norm: _Rule(_is_inexact, _only(_norm, 1)),
    np.sign: _Rule(_is_inexact, _sign),
    np.fmod: _Rule(_is_signed),
    np.lcm: _Rule(_is_integer),
    np.left_shift: _Rule(_is_integer),
    np.right_shift: _Rule(_is_integer),
    np.isclose: _Rule(_is_integer),
    np.allclose: _Rule(_is_integer),
    np.spacing: _Rule(_is_anything),
    np.ldexp: _Rule(_is_anything),
    np.partition: _Rule(_is_anything),
    np.argpartition: _Rule(_is_anything),
}
