"""Arrays for references in NumPy that run as torch operations: NumPy's array interface on a tensor, and a ``numpy``
module on such arrays. Each step goes through ``calls.py``, so that results, copies and views are NumPy's."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from opwright import tree
from opwright.contract.dtypes import short
from opwright.contract.numpy.calls import attribute, run_function, run_method, run_operator
from opwright.contract.numpy.facts import NotLikeNumpyError, is_scalar, mark
from opwright.contract.numpy.ufunc_methods import ACCUMULATIONS, REDUCTIONS, at, outer
from opwright.internals import numpy_layer

__all__ = ["Array", "numpy_on_tensors"]


class Array:
    """An array, or a NumPy number, whose values are in ``tensor``."""

    __array_ufunc__ = None  # NumPy's own arrays leave operators to this class
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not (hasattr(np.ndarray, name) or hasattr(np.generic, name)):
            raise AttributeError(f"'numpy.ndarray' object has no attribute {name!r}")
        if not callable(getattr(np.ndarray, name)):
            return _wrap(attribute(self.tensor, name))

        def method(*args: Any, **keywords: Any) -> Any:
            args, keywords = _unwrap((args, keywords))
            return _wrap(run_method(name, (self.tensor, *args), keywords))

        return method

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(short(self.tensor.dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        return self.tensor.dim()

    @property
    def size(self) -> int:
        return self.tensor.numel()

    @property
    def itemsize(self) -> int:
        return self.tensor.element_size()

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __len__(self) -> int:
        if not self.tensor.dim():
            raise TypeError("len() of unsized object")
        return len(self.tensor)

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self))])

    def __getitem__(self, index: Any) -> Array:
        return Array(run_operator(operator.getitem, (self.tensor, _unwrap(index))))

    def __setitem__(self, index: Any, value: Any) -> None:
        run_operator(operator.setitem, (self.tensor, _unwrap(index), _unwrap(value)))

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __int__(self) -> int:
        return int(self.tensor)

    def __float__(self) -> float:
        return float(self.tensor)

    def __complex__(self) -> complex:
        return complex(self.tensor)

    def __index__(self) -> int:
        return operator.index(self.tensor)

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).tensor.any())

    def __divmod__(self, other: Any) -> Any:
        return _wrap(run_function("divmod", divmod, (self.tensor, _unwrap(other)), {}, "float64"))

    def __repr__(self) -> str:
        return f"{'number' if is_scalar(self.tensor) else 'array'} on {self.tensor!r}"


def _operator_method(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    function = getattr(operator, f"__{name}__")

    def method(self: Array, *others: Any) -> Any:
        operands = (self.tensor, *map(_unwrap, others))
        return _wrap(run_operator(function, operands[::-1] if reflected else operands))

    method.__name__ = f"__{'r' if reflected else ''}{name}__"
    return method


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "matmul")
for _name in _BINARY:
    setattr(Array, f"__{_name}__", _operator_method(_name))
    setattr(Array, f"__r{_name}__", _operator_method(_name, reflected=True))
    setattr(Array, f"__i{_name}__", _operator_method(f"i{_name}"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"):
    setattr(Array, f"__{_name}__", _operator_method(_name))


def _unwrap(value: Any) -> Any:
    """Tensors for arrays, and names for dtypes, in an argument."""
    if isinstance(value, slice):
        return slice(*(_as_index(_unwrap(part)) for part in (value.start, value.stop, value.step)))
    return tree.map_leaves(_unwrap_leaf, value)


def _unwrap_leaf(value: Any) -> Any:
    if isinstance(value, Array):
        return value.tensor
    if isinstance(value, slice):
        return _unwrap(value)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value if all(s >= 0 for s in value.strides) else value.copy())
    if isinstance(value, np.generic):
        return mark(torch.as_tensor(value), scalar=True)
    if isinstance(value, _NumberType):
        return value.name
    if isinstance(value, np.dtype):
        return value.name
    return value.__name__ if isinstance(value, type) and issubclass(value, np.generic) else value


def _as_index(part: Any) -> Any:
    return operator.index(part) if isinstance(part, torch.Tensor) else part


def _wrap(value: Any) -> Any:
    return tree.map_tensors(Array, value)


class _NumberType:
    """``np.float32`` on such arrays: a dtype, and a conversion."""

    def __init__(self, kind: type[np.generic]) -> None:
        self.kind = kind
        self.dtype = np.dtype(kind)
        self.name = self.dtype.name

    def __call__(self, value: Any = 0) -> Any:
        if not isinstance(value, Array):
            return self.kind(value)
        made = run_method("astype", (value.tensor, self.name), {})
        return Array(mark(made, scalar=True))

    def __eq__(self, other: object) -> bool:
        return other is self or np.dtype(self.kind) == other

    def __hash__(self) -> int:
        return hash(self.kind)


class _Module:
    """``numpy``, or one of its modules, on such arrays."""

    def __init__(self, numpys: types.ModuleType, layers: Any, prefix: str = "") -> None:
        self._numpys = numpys
        self._layers = layers
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._numpys, name)
        if isinstance(value, types.ModuleType):
            made: Any = _Module(value, getattr(self._layers, name), f"{self._prefix}{name}.")
        elif value is np.ndarray:
            made = Array
        elif isinstance(value, type) and issubclass(value, np.generic) and value.__module__ == "numpy":
            made = value if name in _ABSTRACT else _NumberType(value)
        elif isinstance(value, type) or not callable(value):
            made = value
        else:
            made = _function(f"{self._prefix}{name}", value, getattr(self._layers, name))
            if isinstance(value, np.ufunc):
                _give_methods(made, value, self)
        setattr(self, name, made)
        return made


_ABSTRACT = frozenset({
    "generic", "number", "integer", "signedinteger", "unsignedinteger", "inexact", "floating", "complexfloating",
    "flexible", "character", "str_", "bytes_", "void", "object_", "datetime64", "timedelta64",
})  # fmt: skip


def _function(path: str, numpys: Callable[..., Any], layers: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **keywords: Any) -> Any:
        if path in _OF_DTYPES:
            return numpys(*_dtypes_for_arrays(args), **_dtypes_for_arrays(keywords))
        args, keywords = _unwrap((args, keywords))
        return _wrap(run_function(path, layers, args, keywords, "float64"))

    call.__name__ = path.rpartition(".")[2]
    return call


def _give_methods(call: Any, ufunc: np.ufunc, module: _Module) -> None:
    """Give a ufunc on such arrays its methods."""

    def other(names: dict[str, str], method: str) -> Callable[..., Any]:
        def run(array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, **keywords: Any) -> Any:
            if ufunc.__name__ not in names:
                raise NotLikeNumpyError(f"np.{ufunc.__name__}.{method}", f"np.{', np.'.join(sorted(names))} have it")
            given = {name: value for name, value in (("dtype", dtype), ("out", out)) if value is not None}
            return getattr(module, names[ufunc.__name__])(array, axis=axis, **given, **keywords)

        return run

    def at_(array: Array, indices: Any, value: Any = None) -> None:
        at(ufunc, array.tensor, _unwrap(indices), _unwrap(value))

    call.at = at_
    call.outer = lambda a, b, **keywords: _wrap(outer(ufunc, _unwrap(a), _unwrap(b), _unwrap(keywords)))
    call.reduce, call.accumulate = other(REDUCTIONS, "reduce"), other(ACCUMULATIONS, "accumulate")


# Answered by NumPy itself, from dtypes alone.
_OF_DTYPES = frozenset({"broadcast_shapes", "can_cast", "issubdtype", "promote_types", "result_type", "isscalar"})


def _dtypes_for_arrays(value: Any) -> Any:
    return tree.map_leaves(lambda v: v.dtype if isinstance(v, Array | _NumberType) else v, value)


@functools.lru_cache(maxsize=1)
def numpy_on_tensors() -> dict[int, Any]:
    """What stands in for NumPy on such arrays, by the id of what it replaces: the module, its functions and dtypes."""
    module = _Module(np, numpy_layer.numpy_functions)
    replaced: dict[int, Any] = {id(np): module}
    for owner, stand_in in ((np, module), (np.linalg, module.linalg), (np.fft, module.fft)):
        replaced[id(owner)] = stand_in
        for name in dir(stand_in._layers):
            value = getattr(owner, name, None)
            is_dtype = isinstance(value, type) and issubclass(value, np.generic | np.ndarray)
            if not name.startswith("_") and (is_dtype or (callable(value) and not isinstance(value, type))):
                replaced[id(value)] = getattr(stand_in, name)
    return replaced
