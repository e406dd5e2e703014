"""NumPy's dtype rules, where those of torch's NumPy layer differ.

Two differ. A function of integers that gives floats (``/``, ``sqrt``, ``arctan2``) gives float64 in NumPy and
``torch.get_default_dtype()``, most often float32, in the layer. And the float dtype of ``zeros`` or of a mean of
integers is one setting of the whole process in the layer; here it is a setting of a block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from opwright.contract.dtypes import short
from opwright.errors import ContractError
from opwright.internals.numpy_layer import default_dtypes

__all__ = ["DefaultFloatDtype", "check_default_float_dtype", "numpy_rules"]

DefaultFloatDtype = Literal["float64", "float32"]
_DTYPES: dict[str, tuple[torch.dtype, torch.dtype]] = {
    "float64": (torch.float64, torch.complex128),
    "float32": (torch.float32, torch.complex64),
}


def check_default_float_dtype(name: str, where: str) -> DefaultFloatDtype:
    """``name`` if it is a supported default; otherwise raises ContractError."""
    if name not in _DTYPES:
        raise ContractError(
            f'{where}: default_float_dtype must be "float64" or "float32", got {name!r}',
            fix='pass "float64", as NumPy does',
        )
    return name  # type: ignore[return-value]


@contextlib.contextmanager
def numpy_rules(default_float_dtype: DefaultFloatDtype = "float64") -> Iterator[None]:
    """A block in which torch's NumPy layer promotes like NumPy, in this thread."""
    with default_dtypes(*_DTYPES[default_float_dtype]), _Promotion(default_float_dtype):
        yield


# Functions that turn integers into floats, by torch's names where these differ from NumPy's.
_OTHER_NAMES = {
    "div": "true_divide", "divide": "true_divide", "true_divide": "true_divide", "__truediv__": "true_divide",
    "__rtruediv__": "true_divide",
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan", "atanh": "arctanh",
    "atan2": "arctan2",
}  # fmt: skip
_SAME_NAMES = (
    "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh",
    "cos", "cosh", "sin", "sinh", "tan", "tanh",
    "deg2rad", "rad2deg", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "logaddexp", "logaddexp2", "sqrt",
    "hypot", "copysign",
)  # fmt: skip
_UFUNCS: dict[str, Any] = {
    **{name: getattr(np, name) for name in _SAME_NAMES},
    **{name: getattr(np, numpys) for name, numpys in _OTHER_NAMES.items()},
}


# torch's functions that make new floats.
_MAKES_FLOATS = frozenset({"empty", "eye", "fft_fftfreq", "fft_rfftfreq", "linspace", "logspace", "ones", "zeros"})


class _Promotion(TorchFunctionMode):
    """Casts integers to NumPy's float dtype before a function that turns them into floats, and passes NumPy's default
    dtype to functions that make new floats."""

    def __init__(self, default_float_dtype: DefaultFloatDtype) -> None:
        super().__init__()
        self._default = default_float_dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        ufunc = _UFUNCS.get(name)
        keywords = kwargs or {}
        if name in _MAKES_FLOATS and keywords.get("dtype") is None:
            keywords = {**keywords, "dtype": _DTYPES[self._default][0]}
        if ufunc is not None and not keywords.get("rounding_mode"):
            dtype = _float_of(ufunc, args[: ufunc.nin], self._default)
            if dtype is not None:
                args = tuple(a.to(dtype) if isinstance(a, torch.Tensor) else a for a in args)
        return func(*args, **keywords)


def _float_of(ufunc: Any, operands: Sequence[Any], default: DefaultFloatDtype) -> torch.dtype | None:
    """NumPy's result dtype for these integers; None if a float or a complex number is among them."""
    tensors = [o for o in operands if isinstance(o, torch.Tensor)]
    if not tensors or any(t.dtype.is_floating_point or t.dtype.is_complex for t in tensors):
        return None
    # A Python number is weak in NumPy: beside integers, a Python float counts as float64.
    known: list[Any] = [np.dtype(short(o.dtype)) if isinstance(o, torch.Tensor) else _python_type(o) for o in operands]
    made = ufunc.resolve_dtypes((*known, *[None] * ufunc.nout))[-1]
    if made.kind != "f":
        return None
    dtype: torch.dtype = getattr(torch, made.name)
    return _DTYPES[default][0] if dtype is torch.float64 else dtype


def _python_type(number: Any) -> type:
    if isinstance(number, bool | torch.SymBool):
        return bool
    return int if isinstance(number, int | torch.SymInt) else complex if isinstance(number, complex) else float
