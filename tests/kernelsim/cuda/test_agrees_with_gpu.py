"""The simulator and a GPU give the same bits, for kernels whose result does not depend on the order of threads."""

from __future__ import annotations

import pytest
import torch

import kernelsim
import opwright as ow
from opwright.errors import SimulatorError
from tests.sampled import quick

SOURCE = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>

__global__ void sum_blocks(const float* x, float* out, int n) {
  __shared__ float partial[32];
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum = fmaf(x[i], 1.5f, sum);
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
  }
}
__global__ void transpose(const float* x, float* out, int rows, int columns) {
  __shared__ float tile[32][33];
  int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
  if (row < rows && column < columns) tile[threadIdx.y][threadIdx.x] = x[row * columns + column];
  __syncthreads();
  column = blockIdx.y * 32 + threadIdx.x;
  row = blockIdx.x * 32 + threadIdx.y;
  if (row < columns && column < rows) out[row * rows + column] = tile[threadIdx.x][threadIdx.y];
}
__global__ void matmul(const float* a, const float* b, float* c, int n) {
  extern __shared__ float tiles[];
  float *left = tiles, *right = tiles + 256, sum = 0;
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  for (int k = 0; k < n; k += 16) {
    left[threadIdx.y * 16 + threadIdx.x] = a[row * n + k + threadIdx.x];
    right[threadIdx.y * 16 + threadIdx.x] = b[(k + threadIdx.y) * n + column];
    __syncthreads();
    for (int j = 0; j < 16; ++j) sum = fmaf(left[threadIdx.y * 16 + j], right[j * 16 + threadIdx.x], sum);
    __syncthreads();
  }
  c[row * n + column] = sum;
}
__global__ void histogram(const int* x, int* bins, int n) {
  __shared__ int own[64];
  for (int i = threadIdx.x; i < 64; i += blockDim.x) own[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[x[i] & 63], 1);
  __syncthreads();
  for (int i = threadIdx.x; i < 64; i += blockDim.x) atomicAdd(&bins[i], own[i]);
}
__global__ void half_arithmetic(const __half* x, const __half* y, __half* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __hfma(x[i], y[i], __hsub(x[i], y[i])) / y[i];
}
__global__ void bfloat16_arithmetic(const __nv_bfloat16* x, const __nv_bfloat16* y, __nv_bfloat16* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __hfma(x[i], y[i], __hsub(x[i], y[i])) * y[i];
}
__global__ void conversions(const float* x, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    out[5 * i] = __float2int_rn(x[i] * 100);
    out[5 * i + 1] = __float_as_int(x[i]) ^ __popc(i) ^ __clz(i + 1);
    out[5 * i + 2] = __half_as_short(__float2half_rn(x[i]));
    out[5 * i + 3] = __bfloat16_as_ushort(__float2bfloat16(x[i]));
    out[5 * i + 4] = __ballot_sync(__activemask(), x[i] > 0);
  }
}
"""
kernels = ow.cuda_module(SOURCE)


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


# kernel, launch, inputs, an empty output, and the numbers after it
CASES = {
    "sum_blocks": ((3, 256), [floats(5000)], torch.zeros(3), (5000,)),
    "transpose": (((4, 3), (32, 32)), [floats(70, 100)], torch.zeros(100, 70), (70, 100)),
    "matmul": (((4, 4), (16, 16), 2048), [floats(64, 64), floats(64, 64) + 1], torch.zeros(64, 64), (64,)),
    "histogram": ((4, 128), [torch.arange(9999, dtype=torch.int32) ** 2], torch.zeros(64, dtype=torch.int32), (9999,)),
    "half_arithmetic": (
        (8, 128), [floats(1000, dtype=torch.half), floats(1000, dtype=torch.half) + 3],
        torch.zeros(1000, dtype=torch.half), (1000,),
    ),
    "bfloat16_arithmetic": (
        (8, 128), [floats(1000, dtype=torch.bfloat16), floats(1000, dtype=torch.bfloat16) + 3],
        torch.zeros(1000, dtype=torch.bfloat16), (1000,),
    ),
    "conversions": ((8, 128), [floats(1000)], torch.zeros(5000, dtype=torch.int32), (1000,)),
}  # fmt: skip


def run(name: str, device: str) -> torch.Tensor:
    launch, inputs, out, numbers = CASES[name]
    out = out.to(device, copy=True)
    kernels[name][launch](*(t.to(device) for t in inputs), out, *numbers)
    return out.cpu()


@pytest.mark.compiler
@pytest.mark.parametrize("name", quick(CASES, 0, 3))
def test_correct_kernels_raise_no_alarm_and_do_not_depend_on_the_order(name):
    first = run(name, "cpu")
    for seed in (1, 2):
        with kernelsim.options(seed=seed):
            assert torch.equal(run(name, "cpu"), first)
    with kernelsim.options(checked=False):
        assert torch.equal(run(name, "cpu"), first)


@pytest.mark.gpu
@pytest.mark.compiler
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_gives_the_same_bits(name):
    simulated, on_gpu = run(name, "cpu"), run(name, "cuda")
    integers = {2: torch.int16, 4: torch.int32}[simulated.element_size()]
    assert torch.equal(simulated.view(integers), on_gpu.view(integers))


@pytest.mark.compiler
def test_reading_what_no_kernel_wrote_is_a_finding():
    x, out = floats(1000), torch.empty(5000, dtype=torch.int32)
    unread = ow.cuda_module("__global__ void sum(const int* x, int* out) { atomicAdd(out, x[threadIdx.x]); }")
    total = torch.zeros(1, dtype=torch.int32)
    with kernelsim.options(uninitialised=[out]):
        with pytest.raises(SimulatorError, match="uninitialised"):
            unread["sum"][1, 32](out, total)
        kernels["conversions"][8, 128](x, out, 1000)
        unread["sum"][1, 32](out, total)
