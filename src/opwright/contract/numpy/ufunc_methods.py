"""What a ufunc has besides calls: ``at``, ``outer``, ``reduce`` and ``accumulate``, on tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from opwright.contract.numpy.facts import NotLikeNumpyError, facts_of, mark, note_write
from opwright.contract.numpy.indexing import get_item, layer_array
from opwright.contract.numpy.ufuncs import call_ufunc, constant
from opwright.internals import numpy_layer

__all__ = ["ACCUMULATIONS", "METHODS", "REDUCTIONS", "at", "outer"]

Tensor = torch.Tensor
METHODS = frozenset({"at", "outer", "reduce", "accumulate"})
# The functions that do the same; their axis is None by default, and that of ``reduce`` and ``accumulate`` is 0.
REDUCTIONS = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all", "logical_or": "any",
}  # fmt: skip
ACCUMULATIONS = {"add": "cumsum", "multiply": "cumprod"}


def _reduces(how: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda flat, positions, values: flat.scatter_reduce(0, positions, values, how)


# From all elements, positions in them, and a value for each position; those of one position are combined.
_SCATTER: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "add": lambda flat, positions, values: flat.scatter_add(0, positions, values),
    "subtract": lambda flat, positions, values: flat.scatter_add(0, positions, -values),
    "multiply": _reduces("prod"),
    "maximum": _reduces("amax"),
    "minimum": _reduces("amin"),
}
# Those in which torch scatters.
_SCATTERED = frozenset({
    torch.float16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
})  # fmt: skip


def at(ufunc: Any, target: Tensor, index: Any, value: Any, default_float: str = "float64") -> None:
    """``ufunc.at(target, index, value)``: elements that are indexed twice are changed twice.

    Raises:
        ValueError, IndexError: as NumPy does.
        NotLikeNumpyError: a ufunc or dtypes whose results could differ from NumPy's.
    """
    scatter = _SCATTER.get(ufunc.__name__)
    if scatter is None:
        raise NotLikeNumpyError(f"np.{ufunc.__name__}.at", f"np.{', np.'.join(sorted(_SCATTER))} have it")
    note_write(target)
    flat = target.reshape(-1).clone()  # as the gradient may need it, and the target is written
    places = mark(torch.arange(flat.numel(), device=target.device).reshape(target.shape))
    positions = get_item(numpy_layer.Array, places, index)
    values = _values(ufunc.__name__, value, target)
    combined = call_ufunc(ufunc, (mark(flat[positions.reshape(-1)]), mark(values.reshape(-1)[:1])), {}, default_float)
    if combined.dtype != target.dtype or target.dtype not in _SCATTERED:
        raise NotLikeNumpyError(
            f"np.{ufunc.__name__}.at of {_name(target)} and {_name(values)}",
            "cast the values to the array's dtype first, which has to be a float or an integer that torch scatters",
        )
    if values.dim() > positions.dim() or torch.broadcast_shapes(values.shape, positions.shape) != positions.shape:
        raise ValueError("array is not broadcastable to correct shape")
    values = values.to(target.dtype).broadcast_to(positions.shape).reshape(-1)
    target.copy_(scatter(flat, positions.reshape(-1), values).reshape(target.shape))


def _values(ufunc: str, value: Any, target: Tensor) -> Tensor:
    if isinstance(value, list | tuple):
        value = layer_array(None, value)
    if isinstance(value, np.ndarray | np.generic):
        value = torch.as_tensor(value, device=target.device)
    if not isinstance(value, Tensor):
        return constant(_number(ufunc, value, target), target.dtype, target.device)
    return value.clone() if facts_of(value).memory is facts_of(target).memory else value


def _number(ufunc: str, value: Any, target: Tensor) -> Any:
    """A Python number in the target's dtype, if NumPy's result is the same: it computes in int64 or float64, and casts
    what it stores."""
    dtype = target.dtype
    is_float = isinstance(value, float | torch.SymFloat)
    number = float(value) if is_float else int(value)
    if dtype in _SCATTERED and dtype.is_floating_point:
        with np.errstate(over="ignore"):
            held = float(np.dtype(_name(target)).type(number))
        if math.isnan(number) or held == number:
            return number
    elif dtype in _SCATTERED and not is_float:
        limits = torch.iinfo(dtype)
        if limits.min <= number <= limits.max:
            return number
        if ufunc not in ("maximum", "minimum"):  # sums and products modulo two to the power of the bits
            return (int(number) - limits.min) % (limits.max - limits.min + 1) + limits.min
    raise NotLikeNumpyError(
        f"np.{ufunc}.at of {_name(target)} and {number!r}, with which NumPy computes in another dtype",
        "use a number that the array's dtype holds, or an array of more bits",
    )


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def outer(ufunc: Any, a: Any, b: Any, keywords: dict[str, Any], default_float: str = "float64") -> Tensor:
    """``ufunc.outer(a, b)``: every element of one with every element of the other."""
    a, b = _as_array(a), _as_array(b)
    return call_ufunc(ufunc, (mark(a.reshape(*a.shape, *(1 for _ in b.shape))), b), keywords, default_float)


def _as_array(value: Any) -> Tensor:
    """Here a Python number is an array: it has NumPy's default dtype."""
    if isinstance(value, list | tuple):
        return layer_array(None, value)
    return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
