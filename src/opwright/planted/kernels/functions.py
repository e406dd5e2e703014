"""Right kernels: torch's own functions, each as torch computes it. None may be found fault with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.planted.catalogue import attach
from opwright.runtime.op import Op

__all__ = ["ROWS"]

_UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "deg2rad", "erf", "erfc", "erfinv",
    "exp", "exp2", "expm1", "floor", "frac", "lgamma", "log", "log10", "log1p", "log2", "neg", "rad2deg",
    "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sign", "sin", "sinc", "sinh", "sqrt", "square", "tan", "tanh",
    "trunc",
)  # fmt: skip
_BINARY = (
    "add", "atan2", "copysign", "div", "fmax", "fmin", "fmod", "heaviside", "hypot", "logaddexp", "maximum", "minimum",
    "mul", "nextafter", "remainder", "sub", "xlogy",
)  # fmt: skip
_CHECKS = (
    "memory",
    "values",
    "metadata",
    "inputs unchanged",
    "global state",
    "repeated calls",
    "execution context",
    "protected memory",
)


def _unary(name: str, function: Callable[[Tensor], Tensor]) -> Op:
    @ow.op(f"selftest::{name}")
    def operator(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return function(x)

    return operator


def _binary(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> Op:
    @ow.op(f"selftest::{name}")
    def operator(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return function(x, y)

    return operator


def _contiguous(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *tensors: function(*tensors).contiguous()


# No name of this module stands for one of these operators, so that each travels by value: a worker that imported the
# module would define them all.
ROWS = [
    row
    for make, names in ((_unary, _UNARY), (_binary, _BINARY))
    for name in names
    for function in [getattr(torch, name)]
    for row in attach(make(name, function), {}, {f"torch.{name}": _contiguous(function)}, checks=_CHECKS)
]
