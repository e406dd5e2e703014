"""Operators whose contracts let some mutants live, and others that let none."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow


@ow.op("mutating::strong")
def strong(x: Float32[Tensor, "*n"], y: Float32[Tensor, "*n"], a: float) -> Float32[Tensor, "*n"]:
    return a * x - y


@strong.python(name="python")
def _(x, y, a):
    """A docstring with a < b, which is no code."""
    assert x.dim() < 100, "text with a + b"
    out = torch.empty(x.shape)
    out[...] = a * x - y  # a comment with a + b
    return out


@strong.python(name="nothing")
def _(x, y, a):
    return torch.sub(torch.mul(x, a), y)


@ow.op("mutating::plain")
def plain(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return torch.neg(x)


@plain.python(name="nothing")
def _(x):
    return torch.neg(x)


@plain.python(name="wrong")
def _(x):
    return torch.neg(x) + 1


@ow.op("mutating::one_divisor")
def one_divisor(x: Float32[Tensor, " n"], by: Annotated[float, ow.values(one_of=(1.0,))]) -> Float32[Tensor, " n"]:
    return x / by


@one_divisor.python(name="python")
def _(x, by):
    return torch.div(x, 1) / by


@ow.op("mutating::step")
def step(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return torch.neg(x) if x.shape[0] > 3000 else torch.abs(x)


@step.python(name="python")
def _(x):
    return torch.neg(x) if x.shape[0] > 3000 else torch.abs(x)


@ow.op("mutating::counted")
def counted(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return torch.neg(x)


@counted.python(name="loop")
def _(x):
    rounds = 0
    while rounds < 3:
        rounds += 1
    return torch.neg(x)


negate = ow.cuda_module("""
__global__ void negate(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = -x[i];
}
__global__ void unused(float* out) { out[0] = 1; }
""")


@plain.cuda(name="cuda")
def _(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    negate["negate"][ow.cdiv(x.shape[0], 256), 256](x, out, x.shape[0])
    return out


def doubled(x):
    return x * 2


@ow.op("mutating::shares")
def shares(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return doubled(x)


@shares.python(name="python")
def _(x):
    return doubled(x) + torch.zeros_like(x, dtype=x.dtype)[0:]
