"""Operators to be shipped: saved outputs, a backward that is an operator, arguments of every kind, many kernels."""

from typing import Annotated

import torch
from helpers import half_of
from jaxtyping import Float, Int
from torch import Tensor

import opwright as ow

__all__ = ["Scale", "gather_sum", "scaled_exp", "scaled_exp_backward"]


@ow.op("mixed::scaled_exp", autocast="float32")
def scaled_exp(
    x: Float[Tensor, "b n"], scale: float, weights: list[float], power: int = 1
) -> tuple[Float[Tensor, "b n"], Annotated[Float[Tensor, "b n"], ow.saved_for_backward]]:
    """``exp(x)`` times a few numbers, and ``exp(x)`` for the backward."""
    e = torch.exp(x)
    return e * (scale * sum(weights) * half_of(2) ** power), e


@ow.op("mixed::scaled_exp_backward")
def scaled_exp_backward(
    grad: Float[Tensor, "b n"], result1: Float[Tensor, "b n"], scale: float, weights: list[float]
) -> Float[Tensor, "b n"]:
    return grad * result1 * (scale * sum(weights))


scaled_exp.cpp("mixed.cpp")
scaled_exp_backward.cpp("mixed.cpp")
scaled_exp.register_autograd(scaled_exp_backward)


@scaled_exp.register_flops
def flops(x, scale, weights, power):
    return 3 * x.numel()


kernels = ow.cuda_module("mixed.cu")


@scaled_exp.cuda(name="cuda")
def _(x, scale, weights, power):
    e, out = torch.empty_like(x), torch.empty_like(x)
    kernels["scaled_exp"][ow.cdiv(x.numel(), 256), 256](x, out, e, x.numel())
    return out, e


@ow.op("mixed::gather_sum")
def gather_sum(
    tables: list[Float[Tensor, "_ n"]], index: Int[Tensor, " k"], bias: Float[Tensor, " n"] | None = None
) -> Float[Tensor, "k n"]:
    """Rows of several tables by one index, added up."""
    total = sum(table[index] for table in tables)
    return total if bias is None else total + bias


@gather_sum.python(name="stacked", when=lambda tables, index, bias: bias is None)
def _(tables, index, bias):
    return torch.stack([t[index] for t in tables]).sum(0)


class Scale(torch.nn.Module):
    """A module around an operator, as a package has besides."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return scaled_exp(x, self.scale, [1.0])
