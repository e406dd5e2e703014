"""What Numba has of NumPy for elements, called with each pair of the special values of a dtype.

``python -m tests.backends.numba_jit.special_values`` prints the expressions whose compiled form gives something else
than NumPy, and those that end the process. Each is compiled by a call with usual values.
"""

from __future__ import annotations

import itertools
import multiprocessing
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import opwright as ow
from opwright.errors import OpwrightError

__all__ = ["CASES", "verdict_of"]

_NAN, _INF = np.nan, np.inf
_FLOATS = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, 0.1, 6.0, -7.0, 2.5, -2.5, 1e308, -1e308, 5e-324, 1e-310, 2.0**53,
    2.0**63, 1e17, _INF, -_INF, _NAN, 1.5, 100.25, -3.7,
]  # fmt: skip
_INTEGERS = [0, 1, -1, 2, -2, 3, -7, 5, 31, 32, 63, 64, 100]
_COMPLEX = [
    0j, 1 + 1j, complex(_INF, 0), complex(-_INF, 1), complex(0, _INF), complex(_NAN, 1), complex(1, _NAN), -1 + 0j,
    complex(-1, -0.0), 2j, 1e200 + 1e200j,
]  # fmt: skip
VALUES = {
    "float64": _FLOATS,
    "float32": _FLOATS,
    "int64": [*_INTEGERS, -(2**63), 2**63 - 1, 2**31],
    "int32": [*_INTEGERS, -(2**31), 2**31 - 1],
    "uint8": [0, 1, 2, 3, 7, 8, 100, 127, 128, 255],
    "bool": [False, True],
    "complex128": _COMPLEX,
}
_UNARY = (
    "abs", "fabs", "negative", "positive", "sign", "signbit", "rint", "floor", "ceil", "trunc", "sqrt", "square",
    "cbrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "arcsin",
    "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "deg2rad", "rad2deg", "isfinite",
    "isinf", "isnan", "isneginf", "isposinf", "spacing", "nan_to_num", "real", "imag", "conj", "angle", "invert",
    "logical_not", "sort", "argsort", "sum", "prod", "mean", "std", "var", "min", "max", "argmin", "argmax", "ptp",
    "unique", "diff", "nanmin", "nanmax", "nansum", "nanmean", "nanstd", "nanvar", "nanprod", "cumprod", "flip",
    "any", "all", "round", "sinc", "count_nonzero", "trim_zeros", "nonzero",
)  # fmt: skip
_BINARY = (
    "add", "subtract", "multiply", "true_divide", "floor_divide", "remainder", "fmod", "power", "divmod", "fmax",
    "fmin", "copysign", "nextafter", "hypot", "arctan2", "logaddexp", "logaddexp2", "heaviside", "ldexp", "equal",
    "less", "greater_equal", "logical_and", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift",
    "right_shift", "gcd", "lcm", "isclose", "allclose", "array_equal", "searchsorted", "isin",
)  # fmt: skip
_WRITTEN = (
    "a + b", "a - b", "a * b", "a / b", "a // b", "a % b", "a ** b", "a << b", "a >> b", "a & b", "a < b", "a == b",
    "divmod(a, b)", "a ** 2", "a ** 3", "a ** 0.5", "a ** -1", "a ** -0.5", "a ** 1", "a ** 0", "a ** -1.0", "a // 2",
    "a % 3", "a // -1", "a % -1", "a / 0", "a // 0", "2 ** a", "0.5 ** a", "-a", "~a", "a[0] // b[0]", "a[0] % b[0]",
    "a[0] ** 0.5", "a[0] ** b[0]", "a ** b[0]", "a // b[0]", "a.clip(b, 3)", "np.where(a < b, c, a)",
)  # fmt: skip
# The sign of a zero that these give depends in NumPy itself on the length of an array, or on the order of a sum.
_OF_ANY_ZERO = (
    "np.clip(a, b, c)", "np.maximum(a, b)", "np.minimum(a, b)", "np.dot(a, b)", "np.convolve(a, b)", "np.cumsum(a)",
    "np.nancumsum(a)", "np.median(a)", "np.nanmedian(a)",
)  # fmt: skip
CASES = [
    (expression, dtype)
    for dtype in VALUES
    for expression in (
        *(f"np.{f}(a)" for f in _UNARY),
        *(f"np.{f}(a, b)" for f in _BINARY),
        *_WRITTEN,
        *(f"{e} + 0" for e in _OF_ANY_ZERO),
    )
]


def verdict_of(expression: str, dtype: str) -> str:
    """``same``, ``refused: …`` (by NumPy itself, too) or how the first result of compiled code differs from NumPy's."""
    function = eval(f"lambda a, b, c: {expression}", {"np": np})
    compiled = ow.compile_numpy(compiler="numba", mode="compiled")(function)
    try:
        compiled(*(np.array([1, 2, 3], dtype) for _ in range(3)))
    except (OpwrightError, TypeError, ValueError) as error:
        return f"refused: {error}"
    for arguments in _grid(expression, dtype):
        with np.errstate(all="ignore"):
            expected, came = _outcome(function, arguments), _outcome(compiled, arguments)
        is_refused = isinstance(came, OpwrightError)  # a call that the compiled function refuses says so
        if not is_refused and not _is_same(expected, came):
            return f"{arguments}: {came!r}, and NumPy gives {expected!r}"
    return "same"


def _grid(expression: str, dtype: str) -> Iterator[list[Any]]:
    values = np.array(VALUES[dtype], dtype)
    used = len({"a", "b", "c"} & set(re.findall(r"\b[abc]\b", expression)))
    for chosen in itertools.product(values, repeat=used):
        yield [np.array([value], dtype) for value in (*chosen, *values[1:3])][:3]


def _outcome(function: Callable[..., Any], arguments: list[Any]) -> Any:
    try:
        return function(*(a.copy() for a in arguments))
    except Exception as error:
        return error


def _is_same(expected: Any, came: Any) -> bool:
    if isinstance(expected, Exception) or isinstance(came, Exception):
        return type(expected) is type(came)
    if isinstance(expected, tuple):
        return len(expected) == len(came) and all(map(_is_same, expected, came))
    left, right = np.asarray(expected), np.asarray(came)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.kind == "c":
        return _is_same(left.real, right.real) and _is_same(left.imag, right.imag)
    if left.dtype.kind != "f":
        return bool((left == right).all())
    equal = (left == right) & (np.signbit(left) == np.signbit(right)) | np.isnan(left) & np.isnan(right)
    with np.errstate(all="ignore"):  # functions such as exp differ in their last digits
        near = (left != 0) & (np.abs(left - right) <= 4 * np.finfo(left.dtype).eps * np.abs(left))
    return bool((equal | near).all())


def _print(case: tuple[str, str]) -> None:
    verdict = verdict_of(*case)
    if verdict != "same" and not verdict.startswith("refused"):
        print(*case, verdict, flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for each in CASES:  # in a process of its own: a division may end it
        process = multiprocessing.get_context("fork").Process(target=_print, args=(each,))
        process.start()
        process.join()
        if process.exitcode:
            print(*each, f"the process ended with {process.exitcode}", flush=True)
