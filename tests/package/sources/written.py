"""Operators that write their arguments, with kernels in C++: into an output, lists, and beside a result."""

from typing import Annotated

from jaxtyping import Float
from torch import Tensor, float32

import opwright as ow

__all__ = ["add_all", "add_out", "shift"]


@ow.op("written::add_out")
def add_out(a: Float[Tensor, "*n"], b: Float[Tensor, "*n"], out: Annotated[Float[Tensor, "*n"], ow.mutated]) -> None:
    out.copy_(a + b)


@ow.op("written::add_all")
def add_all(xs: Annotated[list[Float[Tensor, "?n"]], ow.mutated], others: list[Float[Tensor, "?n"]]) -> None:
    for x, other in zip(xs, others, strict=True):
        x.add_(other)


@ow.op("written::shift")
def shift(x: Annotated[Float[Tensor, " n"], ow.mutated], by: float) -> Float[Tensor, " n"]:
    before = x.clone()
    x.add_(by)
    return before


for _operator in (add_out, add_all, shift):
    _operator.cpp("written.cpp", dtypes=[float32])
