"""An operator whose CUDA and Triton kernels give right values; some have a fault that only compute-sanitizer sees."""

from __future__ import annotations

import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow

KERNELS = """
extern "C" __global__ void right(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2 * x[i];
}
extern "C" __global__ void reads_on(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float next = i <= n ? x[i] : 0.0f;
  if (next == 12345.5f) out[0] = 0;  // never, but the compiler keeps the read
  if (i < n) out[i] = 2 * x[i];
}
// Looks suspicious: all threads read a whole tile, but of shared memory of that size, after a barrier.
extern "C" __global__ void right_by_tiles(const float* x, float* out, int n) {
  __shared__ float tile[128];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = i < n ? x[i] : 0.0f;
  __syncthreads();
  float own = tile[127 - (127 - threadIdx.x)];
  if (i < n) out[i] = 2 * own;
}
extern "C" __global__ void races(const float* x, float* out, int n) {
  __shared__ float tile[128];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = i < n ? x[i] : 0.0f;
  float other = tile[127 - threadIdx.x];  // of another warp, without a barrier
  if (other == 12345.5f) out[0] = 0;
  if (i < n) out[i] = 2 * x[i];
}"""
kernels = ow.cuda_module(KERNELS)
# What the check has to say.
WRONG = {
    "reads_on": ("reads 4 bytes of global memory", "after the end of 'x'", "reads_on, block (0,0,0), thread"),
    "races": ("a race in shared memory",),
}
RIGHT = ("right", "right_by_tiles")


@ow.op("sanitized::double_on_a_gpu")
def double(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return 2 * x


def _launcher(name):
    def launch(x):
        x, out = x.contiguous(), torch.empty(x.shape, device=x.device)
        if x.numel():
            kernels[name][ow.cdiv(x.numel(), 128) + 1, 128](x, out, x.numel())
        return out

    return launch


for name in (*WRONG, *RIGHT):
    double.cuda(_launcher(name), name=name)
