"""NumPy's ufuncs on tensors: operands are cast as NumPy's own table of loops says, and special values are NumPy's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from opwright.contract.dtypes import short
from opwright.contract.numpy.facts import NotLikeNumpyError, mark, note_write
from opwright.contract.numpy.indexing import check_python_int, layer_array

__all__ = ["UFUNCS", "call_ufunc", "constant", "in_place", "numpy_dtype", "ufunc_of", "write_out"]

Tensor = torch.Tensor


def _rounds(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x) if x.dtype.is_floating_point else x.clone()


def _sign(x: Tensor) -> Tensor:
    if x.dtype.is_complex:
        return torch.sgn(x)
    return torch.where(torch.isnan(x), x, torch.sign(x)) if x.dtype.is_floating_point else torch.sign(x)


def _reciprocal(x: Tensor) -> Tensor:
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        raise NotLikeNumpyError("np.reciprocal of integers", "write 1 // x")
    return torch.reciprocal(x)


def _safe_divisor(a: Tensor, b: Any) -> Any:
    """A divisor with which integer division neither traps nor overflows."""
    if not isinstance(b, Tensor):
        return b
    unsafe = b == 0
    if b.dtype.is_signed:
        unsafe = unsafe | (b == -1)
    return torch.where(unsafe, torch.ones_like(b), b)


def _floor_divide(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype.is_floating_point:
        return _float_floor_divide(a, b)
    quotient = torch.floor_divide(a, _safe_divisor(a, b))
    if b.dtype.is_signed:
        quotient = torch.where(b == -1, -a, quotient)
    return torch.where(b == 0, torch.zeros_like(quotient), quotient)


def _float_floor_divide(a: Tensor, b: Tensor) -> Tensor:
    """Python's //. It is not the floor of a / b: 1.0 // 0.1 is 9."""
    rest, exact = torch.fmod(a, b), a / b
    quotient = (a - rest) / b
    quotient = torch.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    floor = torch.floor(quotient)
    floor = torch.where(quotient - floor > 0.5, floor + 1, floor)
    floor = torch.where(quotient != 0, floor, torch.copysign(torch.zeros_like(exact), exact))
    return torch.where(b == 0, exact, floor)


def _remainder_by(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def remainder(a: Tensor, b: Tensor) -> Tensor:
        if a.dtype.is_floating_point:
            return function(a, b)
        rest = function(a, _safe_divisor(a, b))
        # Modulo 1 and -1 the rest is 0, and NumPy says 0 for 0 as well.
        return torch.where(b == 0, torch.zeros_like(rest), rest)

    return remainder


def _float_remainder(a: Tensor, b: Tensor) -> Tensor:
    """Python's %: the sign of the divisor, also of a zero."""
    if not a.dtype.is_floating_point:
        return torch.remainder(a, b)
    rest = torch.fmod(a, b)
    moved = torch.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)
    return torch.where(moved == 0, torch.copysign(torch.zeros_like(moved), b), moved)


def _power(a: Tensor, b: Tensor) -> Tensor:
    if b.dtype.is_floating_point or b.dtype.is_complex or not b.dtype.is_signed:
        return _complex_power(a, b)
    raise NotLikeNumpyError(
        "integers to the power of an array of signed integers, where NumPy refuses negative ones",
        "make one of them float, or the exponent unsigned (.astype(np.uint8))",
    )


def _shift(function: Callable[..., Tensor], left: bool) -> Callable[[Tensor, Tensor], Tensor]:
    def shift(a: Tensor, b: Tensor) -> Tensor:
        bits = torch.iinfo(a.dtype).bits
        out_of_range = (b < 0) | (b >= bits)
        shifted = function(a, torch.where(out_of_range, torch.zeros_like(b), b))
        beyond = torch.zeros_like(a) if left or not a.dtype.is_signed else torch.where(a < 0, -1, 0).to(a.dtype)
        return torch.where(out_of_range, beyond, shifted)

    return shift


def _gcd(a: Tensor, b: Tensor) -> Tensor:
    return torch.abs(torch.gcd(a, b))


def _lcm(a: Tensor, b: Tensor) -> Tensor:
    divisor = _gcd(a, b)  # torch.lcm traps for some values
    divisor = _safe_divisor(a, divisor)
    return torch.div(torch.abs(a), divisor, rounding_mode="trunc") * torch.abs(b)


def _ldexp(x: Tensor, n: Tensor) -> Tensor:
    n = torch.clamp(n.to(torch.int64), -2200, 2200)
    wide, third = x.to(torch.float64), torch.div(n, 3, rounding_mode="floor")
    step, last = torch.exp2(third.to(torch.float64)), torch.exp2((n - 2 * third).to(torch.float64))
    return (wide * step * step * last).to(x.dtype)


def _complex_power(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b == 0, torch.ones_like(b), torch.pow(a, b)) if b.dtype.is_complex else torch.pow(a, b)


def _by_parts(function: Callable[..., Tensor]) -> Callable[[Tensor, Any], Tensor]:
    """Sums of complex numbers: torch multiplies by a factor of 1, which makes NaNs of infinities."""

    def sums(a: Any, b: Any) -> Tensor:
        if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype.is_complex):
            return function(a, b)
        return torch.complex(function(a.real, b.real), function(a.imag, b.imag))

    return sums


def _of_bool(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x) if x.dtype is not torch.bool else x.clone()


def _heaviside(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(torch.isnan(a), a, torch.heaviside(a, b))


# By NumPy's name: the function of torch on operands that have the dtypes of NumPy's loop.
UFUNCS: dict[str, Callable[..., Any]] = {
    "absolute": _of_bool(torch.abs), "fabs": torch.abs, "negative": torch.neg, "positive": torch.clone,
    "sqrt": torch.sqrt, "square": lambda x: x * x, "exp": torch.exp, "exp2": torch.exp2,
    "expm1": torch.expm1, "log": torch.log,
    "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p, "sin": torch.sin, "cos": torch.cos,
    "tan": torch.tan, "arcsin": torch.asin, "arccos": torch.acos, "arctan": torch.atan, "sinh": torch.sinh,
    "cosh": torch.cosh, "tanh": torch.tanh, "arcsinh": torch.asinh, "arccosh": torch.acosh, "arctanh": torch.atanh,
    "rint": _rounds(torch.round), "ceil": _rounds(torch.ceil), "floor": _rounds(torch.floor),
    "trunc": _rounds(torch.trunc), "sign": _sign, "isnan": torch.isnan, "isinf": torch.isinf,
    "isfinite": torch.isfinite, "signbit": torch.signbit, "logical_not": torch.logical_not,
    "invert": torch.bitwise_not, "reciprocal": _reciprocal, "conjugate": lambda x: torch.conj_physical(x).clone(),
    "deg2rad": torch.deg2rad, "radians": torch.deg2rad, "rad2deg": torch.rad2deg, "degrees": torch.rad2deg,
    "add": _by_parts(torch.add), "subtract": _by_parts(torch.sub), "multiply": torch.mul, "divide": torch.true_divide,
    "floor_divide": _floor_divide, "remainder": _remainder_by(_float_remainder), "fmod": _remainder_by(torch.fmod),
    "power": _power, "float_power": _complex_power, "maximum": torch.maximum, "minimum": torch.minimum,
    "fmax": torch.fmax, "fmin": torch.fmin, "arctan2": torch.atan2, "hypot": torch.hypot,
    "logaddexp": torch.logaddexp, "logaddexp2": torch.logaddexp2, "copysign": torch.copysign,
    "heaviside": _heaviside, "nextafter": torch.nextafter, "gcd": _gcd, "lcm": _lcm,
    "ldexp": _ldexp, "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or, "bitwise_xor": torch.bitwise_xor,
    "left_shift": _shift(torch.bitwise_left_shift, True), "right_shift": _shift(torch.bitwise_right_shift, False),
    "logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_xor": torch.logical_xor,
    "equal": torch.eq, "not_equal": torch.ne, "less": torch.lt, "less_equal": torch.le, "greater": torch.gt,
    "greater_equal": torch.ge, "matmul": torch.matmul,
}  # fmt: skip
# Those that take a Python number as it is, for faster generated code.
_TAKE_NUMBERS = frozenset({
    "add", "subtract", "multiply", "divide", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
})  # fmt: skip
_COMPARE = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
_OF_REAL = frozenset({
    "less", "less_equal", "greater", "greater_equal", "maximum", "minimum", "fmax", "fmin", "float_power",
})  # fmt: skip
_OTHER_NAMES = {
    "abs": "absolute", "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
    "atanh": "arctanh", "atan2": "arctan2", "conj": "conjugate", "mod": "remainder", "true_divide": "divide",
    "bitwise_not": "invert", "bitwise_invert": "invert", "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift", "pow": "power",
}  # fmt: skip


def ufunc_of(name: str) -> Any:
    """NumPy's ufunc with a name, an alias or torch's name, if it is among those that are computed; else None."""
    name = _OTHER_NAMES.get(name, name)
    return getattr(np, name) if name in UFUNCS else None


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """NumPy's dtype for torch's; raises TypeError for one that NumPy does not have."""
    return np.dtype(short(dtype))


def call_ufunc(ufunc: Any, operands: Sequence[Any], keywords: dict[str, Any], default_float: str) -> Tensor:
    """A ufunc on tensors and numbers.

    Raises:
        TypeError, OverflowError, ValueError: as NumPy does.
        NotLikeNumpyError: the result could differ from NumPy's.
    """
    operands, out, where, dtype = _arguments(ufunc, operands, keywords)
    loop = _loop(ufunc, operands, dtype, default_float)
    cast = _cast(ufunc, operands, loop)
    result = _compute(ufunc, operands, cast, loop).to(_torch_dtype(loop[-1]))
    if where is not None and out is None:
        raise NotLikeNumpyError("where= without out=, which leaves values undefined in NumPy", "pass out= as well")
    if out is not None:
        return write_out(out, result, where)
    return mark(result, scalar=True)


def _compute(ufunc: Any, operands: Sequence[Any], cast: list[Any], loop: Sequence[np.dtype[Any]]) -> Tensor:
    if ufunc is np.power:
        _refuse_negative_exponent(operands[1], loop[1])
        if type(operands[1]) in (int, float) and isinstance(cast[0], Tensor):
            return torch.pow(cast[0], operands[1])
    if ufunc.__name__ in _OF_REAL and any(d.kind == "c" for d in loop[:-1]):
        raise NotLikeNumpyError(f"np.{ufunc.__name__} of complex numbers", "use their parts or absolute values")
    if any(d == np.uint64 for d in loop[: ufunc.nin]):
        raise NotLikeNumpyError(
            f"np.{ufunc.__name__} of uint64, with which torch does not compute", "cast to int64 first"
        )
    computed: Tensor = UFUNCS[ufunc.__name__](*[c.to(torch.int64) if _is_wide_unsigned(c) else c for c in cast])
    return computed


def _is_wide_unsigned(value: Any) -> bool:
    """torch does not compute with these; int64 gives the same results in the bits that are kept."""
    return isinstance(value, Tensor) and value.dtype in (torch.uint16, torch.uint32)


def in_place(ufunc: Any, target: Tensor, other: Any, default_float: str) -> Tensor:
    """``target += other``."""
    return call_ufunc(ufunc, (target, other), {"out": target}, default_float)


def write_out(out: Tensor, result: Tensor, where: Tensor | None = None) -> Tensor:
    """Write a result into ``out``, which it must fit by NumPy's "same_kind" rule; only ``where`` that is true."""
    note_write(out)
    if not np.can_cast(numpy_dtype(result.dtype), numpy_dtype(out.dtype), "same_kind"):
        raise TypeError(f"Cannot cast ufunc output from {short(result.dtype)} to {short(out.dtype)}")
    if result.dim() > out.dim() or torch.broadcast_shapes(result.shape, out.shape) != out.shape:
        raise ValueError(f"non-broadcastable output operand with shape {tuple(out.shape)}")
    out.copy_(result if where is None else torch.where(where, result.to(out.dtype), out))
    return out


def _arguments(ufunc: Any, operands: Sequence[Any], keywords: dict[str, Any]) -> tuple[list[Any], Any, Any, Any]:
    keywords = dict(keywords)
    out, where, dtype = keywords.pop("out", None), keywords.pop("where", True), keywords.pop("dtype", None)
    for name, only in (("casting", "same_kind"), ("order", "K"), ("subok", True)):
        if keywords.pop(name, only) not in (only, "unsafe" if name == "order" else only):
            raise NotLikeNumpyError(f"{name}= of np.{ufunc.__name__}", "leave it out")
    if keywords:
        raise NotLikeNumpyError(f"{next(iter(keywords))}= of np.{ufunc.__name__}", "leave it out")
    given = list(operands[: ufunc.nin])
    if len(operands) > ufunc.nin:
        out = operands[ufunc.nin]
    if isinstance(out, tuple):
        (out,) = out
    tensors = [_operand(value) for value in given]
    return tensors, out, None if where is True else torch.as_tensor(where), dtype


def _operand(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return layer_array(None, value)
    return torch.as_tensor(value) if isinstance(value, np.ndarray | np.generic) else value


def _loop(ufunc: Any, operands: Sequence[Any], dtype: Any, default_float: str) -> tuple[np.dtype[Any], ...]:
    """The dtypes of operands and result in NumPy."""
    kinds = tuple(numpy_dtype(o.dtype) if isinstance(o, Tensor) else _python_kind(o) for o in operands)
    if not any(isinstance(k, np.dtype) for k in kinds):
        kinds = tuple(np.dtype(k) for k in kinds)
    loop = _resolve(ufunc, kinds, None if dtype is None else np.dtype(dtype))
    is_integer = not any(np.dtype(k).kind in "fc" for k in kinds if isinstance(k, np.dtype))
    if default_float == "float32" and is_integer and dtype is None:
        single = {"float64": np.dtype(np.float32), "complex128": np.dtype(np.complex64)}
        loop = tuple(single.get(d.name, d) for d in loop)
    return loop


@functools.lru_cache(maxsize=4096)
def _resolve(ufunc: Any, kinds: tuple[Any, ...], dtype: Any) -> tuple[np.dtype[Any], ...]:
    options = {} if dtype is None else {"signature": (*[None] * ufunc.nin, dtype)}
    resolved = ufunc.resolve_dtypes((*kinds, None), **options)
    return tuple(np.dtype(d) for d in resolved)


def _python_kind(number: Any) -> type | np.dtype[Any]:
    """How NumPy takes a number of Python: one without a dtype, but for truth values."""
    if isinstance(number, bool | torch.SymBool):
        return np.dtype(bool)
    if isinstance(number, int | torch.SymInt):
        return int
    if isinstance(number, float | torch.SymFloat):
        return float
    if isinstance(number, complex):
        return complex
    raise TypeError(f"an operand of type {type(number).__name__}")


def _cast(ufunc: Any, operands: Sequence[Any], loop: Sequence[np.dtype[Any]]) -> list[Any]:
    device = next((o.device for o in operands if isinstance(o, Tensor) and o.dim()), None)
    device = device or next((o.device for o in operands if isinstance(o, Tensor)), None)
    cast: list[Any] = []
    for operand, dtype in zip(operands, loop, strict=False):
        to = _torch_dtype(dtype)
        if isinstance(operand, Tensor):
            if ufunc.__name__ in _COMPARE and _is_integer(to) and any(map(_is_python_int, operands)):
                to = torch.int64
            cast.append(operand if operand.dtype == to else operand.to(to))
            continue
        if ufunc.__name__ in _COMPARE and _is_integer(to) and _is_python_int(operand):
            to = torch.int64  # numbers beyond the array's dtype are compared, too
        elif _is_python_int(operand):
            check_python_int(operand, to)
        others = [o for o in operands if isinstance(o, Tensor)]
        if ufunc.__name__ in _TAKE_NUMBERS and others and type(operand) in (int, float):
            cast.append(float(operand) if to.is_floating_point else operand)
        else:
            cast.append(constant(operand, to, device))
    return cast


def _is_python_int(operand: Any) -> bool:
    """Whether it is an integer of Python, also one that torch.compile keeps open."""
    return type(operand) is int or isinstance(operand, torch.SymInt)


def _is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def constant(value: Any, dtype: torch.dtype, device: torch.device | None) -> Tensor:
    """A number as a tensor without dims, which fake tensors and generated code take as a constant."""
    return torch.full((), value, dtype=dtype, device=device)


def _refuse_negative_exponent(exponent: Any, dtype: np.dtype[Any]) -> None:
    if dtype.kind in "iu" and not isinstance(exponent, Tensor) and exponent < 0:
        raise ValueError("Integers to negative integer powers are not allowed.")


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    found = getattr(torch, dtype.name, None)
    if not isinstance(found, torch.dtype):
        raise NotLikeNumpyError(f"dtype {dtype.name}, which torch does not have", "cast to float64 or complex128 first")
    return found
