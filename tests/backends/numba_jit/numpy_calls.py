"""What Numba has of NumPy, called with NaN, infinities, zeros, large and negative numbers, and no elements.

``python -m tests.backends.numba_jit.numpy_calls [EXPRESSION…]`` prints those whose compiled form gives something else
than NumPy, and those that are refused. Each is compiled by a call with usual values.
"""

from __future__ import annotations

import copy
import math
import sys
import warnings
from typing import Any

import numpy as np

import opwright as ow
from opwright.backends.numpy.numba_compiled import Stopped
from opwright.contract.numpy.comparison import copied, difference
from opwright.errors import OpwrightError

__all__ = ["EXPRESSIONS", "verdict_of"]

# x: floats; k: integers; m: a matrix.
EXPRESSIONS = (
    "np.max(x)", "np.min(x)", "np.argmax(x)", "np.argmin(x)", "np.sort(x)", "np.argsort(x)", "np.median(x)",
    "np.mean(x)", "np.std(x)", "np.var(x)", "np.sum(x)", "np.prod(x)", "np.cumsum(x)", "np.cumprod(x)",
    "np.unique(x)", "np.sign(x)", "np.round(x)", "np.round(x, 2)", "np.around(x, 1)", "np.floor(x)", "np.ceil(x)",
    "np.trunc(x)", "np.rint(x)", "np.fix(x)", "np.clip(x, 0.0, 1.0)", "np.maximum(x, 0.5)", "np.minimum(x, 0.5)",
    "np.fmax(x, 0.5)", "np.fmin(x, 0.5)", "np.abs(x)", "np.sqrt(x)", "np.log(x)", "np.exp(x)", "np.log1p(x)",
    "np.expm1(x)", "np.sin(x)", "np.arcsin(x)", "np.arctan2(x, x[::-1].copy())", "np.hypot(x, x)", "np.mod(x, 0.3)",
    "np.fmod(x, 0.3)", "np.remainder(x, -0.7)", "np.floor_divide(x, 0.3)", "np.true_divide(x, x)", "np.power(x, 0.5)",
    "np.power(x, 2)", "np.isnan(x)", "np.isinf(x)", "np.isfinite(x)", "np.nan_to_num(x)", "np.nansum(x)",
    "np.nanmax(x)", "np.nanmin(x)", "np.nanmean(x)", "np.nanmedian(x)", "np.nanstd(x)", "np.nanpercentile(x, 30)",
    "np.percentile(x, 30)", "np.quantile(x, 0.4)", "np.ptp(x)", "np.diff(x)", "np.where(x > 0, x, -x)",
    "np.nonzero(x)", "np.flatnonzero(x)", "np.searchsorted(np.sort(x), 0.5)",
    "np.digitize(x, np.array([0.0, 0.5, 1.0]))", "np.histogram(x, 3)", "np.histogram(x, 3, (0.0, 1.0))",
    "np.bincount(k)", "np.interp(0.5, np.arange(x.shape[0]) * 1.0, x)", "np.dot(x, x)", "np.outer(x, x)",
    "np.roll(x, 1)", "np.flip(x)", "np.repeat(x, 2)", "np.tile(x, 2)", "np.concatenate((x, x))", "np.stack((x, x))",
    "np.vstack((x, x))", "np.append(x, 1.0)", "np.delete(x, 0)", "np.trapezoid(x)", "np.convolve(x, x)",
    "np.correlate(x, x)", "np.cov(x)", "np.corrcoef(x, x)", "np.any(x > 0)", "np.all(x > 0)", "np.count_nonzero(x)",
    "np.allclose(x, x)", "np.array_equal(x, x)", "np.isclose(x, x)", "np.logical_and(x > 0, x < 1)",
    "np.bitwise_and(k, 3)", "np.left_shift(k, 2)", "np.right_shift(k, 1)", "np.invert(k)", "np.sum(k)", "np.prod(k)",
    "np.cumsum(k)", "np.abs(k)", "np.sign(k)", "np.max(k)", "np.mean(k)", "np.sqrt(k)", "np.power(k, 2)",
    "np.mod(k, 3)", "np.floor_divide(k, -2)", "np.gcd(k, 6)", "np.lcm(k, 4)", "x.sum()", "x.mean()", "x.max()",
    "x.argmax()", "x.astype(np.int64)", "x.astype(np.int32)", "x.astype(np.float32)", "k.astype(np.uint8)",
    "k.astype(np.int8)", "k.astype(np.float32)", "x.reshape(-1, 1)", "x.copy()", "x.T", "x[x > 0.4]", "x[1:]",
    "x[-1]", "x[0]", "x.std()", "k.sum()", "k.min()", "x.cumsum()", "x.round(1)", "round(x[0], 2)", "round(x[1], 1)",
    "x[0] // x[1]", "x[0] % x[1]", "x[0] / x[1]", "x[0] ** x[1]", "k[0] // k[1]", "k[0] % k[1]", "k[0] / k[1]",
    "k[0] ** 2", "k[0] << 3", "int(x[0])", "float(k[0])", "bool(x[0])", "abs(k[0])", "abs(x[0])", "min(x[0], x[1])",
    "max(x[0], x[1])", "-k[0]", "k[0] * k[1]", "k[0] + k[1]", "k[0] == x[0]", "k[0] < x[0]", "x[0] == k[1]",
    "divmod(x[0], x[1])", "divmod(k[0], k[1])", "math.floor(x[0])", "math.fabs(x[0])", "math.isnan(x[0])",
    "math.degrees(x[0])", "math.gcd(k[0], k[1])", "math.log(x[0])", "math.log2(x[1])", "math.erf(x[0])",
    "math.gamma(x[1])", "math.lgamma(x[1])", "math.copysign(x[0], x[1])", "math.ldexp(x[0], 3)", "math.frexp(x[0])",
    "math.modf(x[0])", "math.hypot(x[0], x[1])", "math.exp(x[0])", "math.tanh(x[0])", "math.atan(x[0])",
    "math.acosh(x[0])", "math.pow(x[0], x[1])", "np.zeros(k[0])", "np.ones((k[0], 2))", "np.empty(k[0]).shape",
    "np.arange(k[0])", "np.arange(0.0, x[0], 0.25)", "np.linspace(x[0], x[1], 5)", "np.full(k[0], x[0])",
    "np.eye(k[0])", "np.arange(k[0], k[1])", "np.linalg.norm(x)", "np.linalg.inv(m)",
    "np.linalg.solve(m, m[0].copy())", "np.linalg.det(m)", "np.linalg.cholesky(m)", "np.linalg.eigvalsh(m)", "m @ m",
    "np.trace(m)", "np.sum(m, 0)", "np.sum(m, axis=1)", "np.linalg.qr(m)[1]", "np.linalg.svd(m)[1]", "np.kron(m, m)",
    "np.triu(m)", "np.tril(m, -1)", "m.T.copy()", "np.diag(m)", "np.argmax(m)", "np.max(m)", "m[:, 1]", "m[0, 1]",
    "np.fliplr(m)", "np.rot90(m)", "np.partition(x, 1)", "np.sort(k)", "np.argsort(k)", "np.unique(k)",
    "np.take(x, k % 2)", "x[k[0]]", "np.intersect1d(k, k)", "np.union1d(k, k)", "np.setdiff1d(k, k[1:])",
    "np.in1d(k, k)", "np.isin(k, k)", "np.sinc(x)", "np.angle(x)", "np.real(x)", "np.logspace(x[0], x[1], 3)",
    "np.nancumsum(x)", "np.nanprod(x)", "np.ediff1d(x)", "np.vander(x, 3)", "np.average(x)",
    "np.select([x > 0.5], [x], 0.0)", "np.extract(x > 0.3, x)", "np.signbit(x)", "np.reciprocal(x)", "np.square(x)",
    "np.cbrt(x)", "np.float32(x[0])", "np.int32(x[0])", "np.uint8(k[0])", "np.int16(k[1])", "np.complex128(x[0])",
    "np.float64(k[0])", "np.dot(m, m)", "np.bool_(x[0])", "(x[0] > 0) + (x[1] > 0)", "sum(x)", "sorted(x)", "len(x)",
    "list(x)", "tuple((x[0], k[0]))", "max(k[0], x[0])", "min(0, x[0])",
)  # fmt: skip
_NAN, _INF = math.nan, math.inf
_USUAL = ([0.3, 0.7, 0.5, 0.2], [3, 2, 5, 1], [[2.0, 1.0], [1.0, 3.0]])
_UNUSUAL: list[tuple[Any, Any, Any]] = [
    ([_NAN, 0.5, _INF, -_INF], [0, 0, -3, 2], [[_NAN, 1.0], [1.0, 3.0]]),
    ([0.0, -0.0, 0.5, 0.5], [-1, 2**62, 2**62, 2**62], [[0.0, 0.0], [0.0, 0.0]]),
    ([2.675, 1e300, -1e300, 2.5], [2**53 + 1, -(2**63), 300, -129], [[1.0, 2.0], [2.0, 1.0]]),
    ([-1.5, 0.0, 3e9, -3e9], [-7, 2, 2, 2], [[1e308, 1e308], [1e308, -1e308]]),
    ([float(2**53), _NAN, _NAN, 1.0], [2**53 + 1, 0, 0, 0], [[_INF, 1.0], [1.0, _INF]]),
    ([], [], np.zeros((0, 0))),
]


def _arguments(values: tuple[Any, Any, Any]) -> tuple[Any, ...]:
    x, k, m = copy.deepcopy(values)
    return np.array(x, np.float64), np.array(k, np.int64), np.array(m)


def _outcome(function: Any, values: tuple[Any, Any, Any]) -> Any:
    try:
        with np.errstate(all="ignore"):
            return copied(function(*_arguments(values)))
    except OpwrightError:
        raise
    except Exception as error:
        return error


def verdict_of(expression: str) -> str:
    """``same``, ``refused: …`` or how a result of compiled code differs from NumPy's."""
    function = eval(f"lambda x, k, m: {expression}", {"np": np, "math": math})
    compiled = ow.compile_numpy(compiler="numba", mode="compiled")(function)
    try:
        _outcome(compiled, _USUAL)
    except OpwrightError as error:
        return f"refused: {error.message}"
    for values in _UNUSUAL:
        expected = _outcome(function, values)
        try:
            came = _outcome(compiled._ways["numba"], values)
        except Stopped:
            continue
        if isinstance(came, Exception):  # NumPy then runs, too
            continue
        if isinstance(expected, Exception):
            return f"{values}: {came!r}, and NumPy raises {expected!r}"
        if found := difference(expected, came, classes=False):
            return f"{values}: {found}"
    return "same"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for each in sys.argv[1:] or EXPRESSIONS:
        verdict = verdict_of(each)
        if verdict != "same":
            print(f"{each}: {verdict}", flush=True)
