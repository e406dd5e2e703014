"""One step of NumPy code on tensors: a function, a method, an operator or an attribute, with NumPy's results.

``torch.compile`` traces NumPy code into such steps, and references run as such steps where NumPy itself cannot run.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from opwright import tree
from opwright.contract.numpy.facts import NotLikeNumpyError, is_scalar, refuse_stale
from opwright.contract.numpy.functions import call_function
from opwright.contract.numpy.indexing import get_item, refuse_float_number, set_item
from opwright.contract.numpy.names import OTHER_VALUES, what_to_write
from opwright.contract.numpy.rules import DefaultFloatDtype, numpy_rules
from opwright.contract.numpy.ufuncs import call_ufunc, in_place, ufunc_of
from opwright.internals import numpy_layer

__all__ = ["attribute", "function_path", "run_function", "run_method", "run_operator", "run_step"]

_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "and_": "bitwise_and", "or_": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "left_shift", "rshift": "right_shift", "matmul": "matmul", "eq": "equal", "ne": "not_equal",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "neg": "negative", "pos": "positive",
    "abs": "absolute", "invert": "invert", "inv": "invert",
}  # fmt: skip


def run_step(step: Any, args: Any, keywords: dict[str, Any], default_float: DefaultFloatDtype) -> Any:
    """One step of a traced graph: torch's wrapper of a function, a method or an operator, or of an attribute."""
    args, keywords = _plain(tuple(args)), _plain(dict(keywords))
    if hasattr(step, "f"):
        return run_function(function_path(step.f), step.f, args, keywords, default_float)
    if hasattr(step, "method"):
        return run_method(step.method, args, keywords, default_float)
    if hasattr(step, "op"):
        return run_operator(step.op, args, default_float)
    return attribute(args[0], args[1], default_float)


def _plain(value: Any) -> Any:
    """Ordinary lists and dictionaries for those of a graph, which are of classes of their own."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if type(value) is tuple:
        return tuple(_plain(item) for item in value)
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def run_operator(op: Callable[..., Any], args: tuple[Any, ...], default_float: DefaultFloatDtype = "float64") -> Any:
    """An operator of Python, such as ``operator.iadd``, with tensors for arrays."""
    _check_reads(args)
    name = getattr(op, "__name__", "").strip("_")
    first = args[0]
    if op is torch.select:  # torch's form of a[i] with a size for i
        return get_item(numpy_layer.Array, first, args[2])
    if name == "getitem" and isinstance(first, torch.Tensor):
        return get_item(numpy_layer.Array, first, args[1])
    if name == "setitem" and isinstance(first, torch.Tensor):
        return set_item(numpy_layer.Array, *args)
    writes = name.startswith("i") and name[1:].rstrip("_") in _IN_PLACE
    plain = _IN_PLACE[name[1:].rstrip("_")] if writes else _OPERATORS.get(name) or _OPERATORS.get(f"{name}_")
    if plain is not None:
        ufunc = ufunc_of(plain)
        if writes and isinstance(first, torch.Tensor) and not is_scalar(first):
            return in_place(ufunc, first, args[1], default_float)
        if plain == "power" and _squares_bits(args):
            return call_ufunc(ufunc_of("square"), (first,), {}, default_float)
        return call_ufunc(ufunc, args, {}, default_float)
    if name == "divmod":
        return run_function("divmod", op, args, {}, default_float)
    with numpy_rules(default_float):
        return _on_layer(op, args, {})


def _squares_bits(args: tuple[Any, ...]) -> bool:
    """Whether this is ``bits ** 2``, for which NumPy's operator takes the square: int8, where np.power gives int64."""
    bits, exponent = args
    is_array = isinstance(bits, torch.Tensor) and bits.dtype is torch.bool and not is_scalar(bits)
    return is_array and type(exponent) is int and exponent == 2 and (np.zeros(0, bool) ** 2).dtype == np.int8


_IN_PLACE = {name.rstrip("_"): ufunc for name, ufunc in _OPERATORS.items()}


def run_function(
    path: str, function: Callable[..., Any], args: Any, keywords: dict[str, Any], default_float: DefaultFloatDtype
) -> Any:
    """A function of NumPy by its path (``linalg.norm``); ``function`` is torch's implementation."""
    _check_reads((args, keywords))
    if path == "divmod":
        pair = (ufunc_of("floor_divide"), ufunc_of("remainder"))
        return tuple(call_ufunc(ufunc, args, keywords, default_float) for ufunc in pair)
    if path in OTHER_VALUES:
        raise NotLikeNumpyError(f"np.{path} {OTHER_VALUES[path]}", what_to_write(path))
    ufunc = ufunc_of(path)
    if ufunc is not None:
        return call_ufunc(ufunc, args, keywords, default_float)

    def run(*args: Any, **keywords: Any) -> Any:
        with numpy_rules(default_float):
            return _on_layer(function, args, keywords)

    return call_function(path, run, args, keywords, default_float)


def run_method(name: str, args: Any, keywords: dict[str, Any], default_float: DefaultFloatDtype = "float64") -> Any:
    """A method of an array, the first of ``args``."""
    if name.startswith("__") and name.endswith("__"):
        plain = name.strip("_")
        if plain in ("getitem", "setitem") or plain in _OPERATORS:
            return run_operator(getattr(operator, plain), tuple(args), default_float)
        if plain.startswith("r") and plain[1:] in _OPERATORS:
            return run_operator(getattr(operator, plain[1:]), (args[1], args[0]), default_float)
        if plain.startswith("i") and hasattr(operator, plain):
            return run_operator(getattr(operator, plain), tuple(args), default_float)

    if name == "fill" and isinstance(args[0], torch.Tensor) and len(args) > 1:
        refuse_float_number(args[0], args[1])

    def run(array: Any, *args: Any, **keywords: Any) -> Any:
        layers = array if isinstance(array, numpy_layer.Array) else numpy_layer.Array(torch.as_tensor(array))
        return getattr(layers, name)(*args, **keywords)

    path = f"method {name}" if name in _OWN_METHODS else name
    return run_function(path, run, args, keywords, default_float)


_OWN_METHODS = frozenset({"astype", "copy", "fill", "flatten", "resize", "sort", "tolist"})


def attribute(tensor: torch.Tensor, name: str, default_float: DefaultFloatDtype = "float64") -> Any:
    """An attribute of an array; arrays as tensors."""
    return run_function(name, lambda array: getattr(array, name), (tensor,), {}, default_float)


def _check_reads(args: Any) -> None:
    for tensor in tree.tensors(args):
        refuse_stale(tensor)


def _on_layer(function: Callable[..., Any], args: Any, keywords: Any) -> Any:
    """Run torch's implementation on its own arrays, from and to tensors."""
    array = numpy_layer.Array
    args, keywords = tree.map_tensors(array, (list(args), dict(keywords)))
    result = function(*args, **keywords)
    if isinstance(result, tuple):
        result = tuple(result)  # one of torch's own kinds of tuples
    return tree.map_only(array, lambda a: a.tensor, result)


def function_path(function: Callable[..., Any]) -> str:
    """``linalg.norm`` for torch's implementation of that function, whose own name may be another."""
    return _paths().get(id(function)) or str(getattr(function, "__name__", ""))


@functools.lru_cache(maxsize=1)
def _paths() -> dict[int, str]:
    layers = numpy_layer.numpy_functions
    parts = [("", layers), *((f"{part}.", getattr(layers, part, None)) for part in ("linalg", "fft", "random"))]
    return {id(value): prefix + name for prefix, part in parts for name, value in vars(part).items() if callable(value)}
