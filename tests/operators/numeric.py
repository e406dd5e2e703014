"""Operators on small floats, a reduction in CUDA and sizes that depend on data: each with a right and a wrong one."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import BFloat16, Float, Float8e4m3fn, Float32, Int64, Shaped, UInt8
from torch import Tensor

import opwright as ow
from tests.operators.faults import FAULTS, wrong

# -- a matrix product of float8 with a scale for each row and column -------------------------------------------------


@ow.op("stack::fp8_matmul")
def fp8_matmul(
    x: Float8e4m3fn[Tensor, "m k"],
    w: Float8e4m3fn[Tensor, "k n"],
    x_scale: Annotated[Float32[Tensor, " m"], ow.values(0.1, 2)],
    w_scale: Annotated[Float32[Tensor, " n"], ow.values(0.1, 2)],
) -> BFloat16[Tensor, "m n"]:
    return (x.float() @ w.float() * x_scale[:, None] * w_scale).bfloat16()


@fp8_matmul.python
def fp8_matmul_in_parts(x, w, x_scale, w_scale):
    total = torch.zeros(x.shape[0], w.shape[1], device=x.device)
    for start in range(0, x.shape[1], 32):
        total += x[:, start : start + 32].float() @ w[start : start + 32].float()
    return (total * x_scale[:, None] * w_scale).bfloat16()


@wrong(fp8_matmul, "values")
def fp8_matmul_scales_columns_by_the_scales_of_rows(x, w, x_scale, w_scale):
    scale = x_scale[: w.shape[1]] if len(x_scale) >= w.shape[1] else w_scale
    return (x.float() @ w.float() * x_scale[:, None] * scale).bfloat16()


# -- a matrix product with weights of four bits, two in a byte -------------------------------------------------------


@ow.op("stack::int4_matmul")
def int4_matmul(
    x: Float[Tensor, "m 2*k"], packed: Annotated[UInt8[Tensor, "k n"], ow.values(0, 255)], scale: Float[Tensor, " n"]
) -> Float[Tensor, "m n"]:
    low, high = (packed & 15).to(x.dtype) - 8, (packed >> 4).to(x.dtype) - 8
    w = torch.stack([low, high], 1).view(2 * packed.shape[0], packed.shape[1])
    return x @ w * scale


@int4_matmul.python
def int4_matmul_by_halves(x, packed, scale):
    wide = torch.promote_types(x.dtype, torch.float32)  # two sums in half precision would not cancel as one does
    low, high = (packed & 15).to(wide) - 8, (packed >> 4).to(wide) - 8
    return ((x[:, ::2].to(wide) @ low + x[:, 1::2].to(wide) @ high) * scale).to(x.dtype)


@wrong(int4_matmul, "values")
def int4_matmul_takes_signed_halves(x, packed, scale):
    low, high = (packed & 15).to(x.dtype) - 8, (packed.view(torch.int8) >> 4).to(x.dtype) - 8
    return (x[:, ::2] @ low + x[:, 1::2] @ high) * scale


# -- the indices of what is not zero ---------------------------------------------------------------------------------


@ow.op("stack::nonzero")
def nonzero(x: Annotated[Shaped[Tensor, "h w"], ow.values(0, 1, zeros=0.5)]) -> Int64[Tensor, "found 2"]:
    return torch.nonzero(x)


@nonzero.python
def nonzero_by_columns(x):
    flat = (x.contiguous().view(-1) != 0).nonzero()[:, 0]
    return torch.stack([flat // x.shape[1], flat % x.shape[1]], 1) if x.shape[1] else flat.new_empty(0, 2)


@wrong(nonzero, "values")
def nonzero_in_order_of_columns(x):
    return x.mT.nonzero().flip(1).contiguous()


# -- sums of rows, in CUDA -------------------------------------------------------------------------------------------

SOURCE = """
template <typename T>
__global__ void row_sums(const T* x, float* out, long rows, long columns, long row_stride, long column_stride) {
    __shared__ float partial[32];
    const T* row = x + blockIdx.x * row_stride;
    float sum = 0;
    for (long i = threadIdx.x; i < columns; i += blockDim.x) sum += static_cast<float>(row[i * column_stride]);
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffu, sum, distance);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < WARPS; ++warp) sum += partial[warp];
        out[blockIdx.x] = sum;
    }
}
"""


@ow.op("stack::row_sums")
def row_sums(x: Float32[Tensor, "m n"]) -> Float32[Tensor, " m"]:
    return x.sum(1)


def launcher(warps):
    module = ow.cuda_module(SOURCE.replace("WARPS", warps))

    def launch(x):
        out = x.new_empty(x.shape[0])
        if x.shape[0]:
            module["row_sums<float>"][(x.shape[0],), (128,)](x, out, *x.shape, *x.stride())
        return out

    return launch


row_sums.cuda(launcher("blockDim.x / 32"), name="row_sums_right")
row_sums.cuda(launcher("2"), name="row_sums_of_two_warps")
FAULTS["row_sums:row_sums_of_two_warps"] = "values"
