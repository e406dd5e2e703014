"""Quantisation to int8 and to 8-bit floats (e4m3), and products of such matrices with their scales, in Triton."""

from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from jaxtyping import AbstractDtype, BFloat16, Float8e4m3fn, Float32, Int8
from torch import Tensor

import opwright as ow
from opwright.gallery.llm.floats import Floats

__all__ = ["block_scaled_mm", "quantize_fp8", "quantize_int8", "scaled_mm"]

if TYPE_CHECKING:
    from jaxtyping import Shaped as Narrow
else:

    class Narrow(AbstractDtype):
        """Both factors of a product have the same one of these."""

        dtypes = ["int8", "float8_e4m3fn"]  # noqa: RUF012  # as jaxtyping reads it


# -- quantisation ------------------------------------------------------------------------------------------------

Finite = Annotated[Floats[Tensor, "m k"], ow.values(finite=True)]
Block = Annotated[int, ow.values(one_of=(32, 128, 1 << 20))]
Scales = Float32[Tensor, " m (k+block-1)//block"]


@ow.op("llm::quantize_int8", where=["1 <= k", "1 <= block"])
@torch.no_grad()
def quantize_int8(x: Finite, block: Block = 128) -> tuple[Int8[Tensor, "m k"], Scales]:
    """Integers from -127 to 127, and a scale for each ``block`` columns of a row: x is about their product.

    A scale is the largest absolute value divided by 127, or 1 for zeros. ``block >= k`` gives a scale for each row;
    quantise ``x.view(1, -1)`` for one scale of all.
    """
    wide, scale = groups_of(x, block, 127)
    return (wide / scale).round().clamp(-127, 127).flatten(1)[:, : x.shape[1]].to(torch.int8), scale[..., 0]


@ow.op("llm::quantize_fp8", where=["1 <= k", "1 <= block"])
@torch.no_grad()
def quantize_fp8(x: Finite, block: Block = 128) -> tuple[Float8e4m3fn[Tensor, "m k"], Scales]:
    """The same with floats of 8 bits (e4m3), the largest of which is 448."""
    wide, scale = groups_of(x, block, 448)
    return (wide / scale).clamp(-448, 448).flatten(1)[:, : x.shape[1]].to(torch.float8_e4m3fn), scale[..., 0]


def groups_of(x: Tensor, block: int, largest: int) -> tuple[Tensor, Tensor]:
    """The columns in groups, and their scales."""
    k = x.shape[1]
    block = min(block, k)
    wide = F.pad(x.float(), (0, -k % block)).reshape(len(x), -(-k // block), block)
    found = wide.abs().amax(-1, keepdim=True)
    return wide, torch.where(found > 0, found, largest) / largest


# -- products ----------------------------------------------------------------------------------------------------

Scale = ow.values(0.01, 1)


@ow.op("llm::scaled_mm")
@torch.no_grad()
def scaled_mm(
    a: Annotated[Narrow[Tensor, "m k"], ow.values(-127, 127)],
    b: Annotated[Narrow[Tensor, "n k"], ow.values(-127, 127)],
    a_scale: Annotated[Float32[Tensor, "#m"], Scale],
    b_scale: Annotated[Float32[Tensor, "#n"], Scale],
) -> BFloat16[Tensor, "m n"]:
    """``(a · a_scale) @ (b · b_scale).t()``: scales of rows and channels, or one of each tensor."""
    product = (a.float() @ b.float().t()) * a_scale[:, None] * b_scale
    return product.to(torch.bfloat16)


@ow.op("llm::block_scaled_mm")
@torch.no_grad()
def block_scaled_mm(
    a: Annotated[Narrow[Tensor, "m k"], ow.values(-127, 127)],
    b: Annotated[Narrow[Tensor, "n k"], ow.values(-127, 127)],
    a_scale: Annotated[Float32[Tensor, " m (k+127)//128"], Scale],
    b_scale: Annotated[Float32[Tensor, " (n+127)//128 (k+127)//128"], Scale],
) -> BFloat16[Tensor, "m n"]:
    """The same with a scale for each 128 columns of a row of a, and for each block of 128 × 128 of b, as DeepSeek-V3
    has them."""
    k, n = a.shape[1], len(b)
    left = a.float() * a_scale.repeat_interleave(128, 1)[:, :k]
    right = b.float() * b_scale.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    return (left @ right.t()).to(torch.bfloat16)


for operator in (quantize_int8, quantize_fp8, scaled_mm, block_scaled_mm):
    operator.triton("kernels/quantized_triton.py", entry=operator.contract.name)


@quantize_int8.samples
def long_groups():
    for n, block in ((20_000, 1 << 20), (40_001, 20_000)):  # longer than what a program keeps
        yield torch.randn(2, n), block


quantize_fp8.samples(long_groups)
quantize_int8.sizes(m=(4096, 16_384), k=(4096,))
quantize_fp8.sizes(m=(4096, 16_384), k=(4096,))
scaled_mm.sizes(m=(16, 4096), n=(4096,), k=(4096,))
block_scaled_mm.sizes(m=(16, 4096), n=(4096,), k=(4096,))
