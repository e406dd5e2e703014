"""A candidate that multiplies with cuBLAS, and whose task has no constants, is judged in the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from opwright.judged.run import judge
from opwright.results import Status

pytestmark = [pytest.mark.compiler, pytest.mark.slow]  # whole checks of two candidates

REFERENCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self, n, k):
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.randn(n, k)), torch.nn.Parameter(torch.randn(n))
    def forward(self, x): return torch.relu(x @ self.weight.t() + self.bias)
def get_inputs(): return [torch.randn(48, 40)]
def get_init_inputs(): return [56, 40]
"""
CANDIDATE = r'''
import torch
from torch.utils.cpp_extension import load_inline
SOURCE = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <cublas_v2.h>
__global__ void bias_relu(float* y, const float* b, int n, int total) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
    const float v = y[i] + b[i % n];
    y[i] = v < 0.f ? 0.f : v;
  }
}
torch::Tensor fused(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
  const int m = x.size(0), k = x.size(1), n = w.size(0);
  auto y = torch::empty({m, n}, x.options());
  const float alpha = 1.0f, beta = 0.0f;
  cublasStatus_t status = cublasSgemm(at::cuda::getCurrentCUDABlasHandle(), CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &alpha,
                                      w.data_ptr<float>(), k, x.data_ptr<float>(), k, &beta, y.data_ptr<float>(), n);
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLAS failed");
  int multiprocessors;
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);
  const int blocks = std::min((m * n + 255) / 256, multiprocessors);
  bias_relu<<<blocks, 256>>>(y.data_ptr<float>(), b.data_ptr<float>(), n, m * n);
  return y;
}
"""
DECLARATION = "torch::Tensor fused(torch::Tensor x, torch::Tensor w, torch::Tensor b);"
extension = load_inline("fused", cpp_sources=DECLARATION, cuda_sources=SOURCE, functions=["fused"])
class ModelNew(torch.nn.Module):
    def __init__(self, n, k):
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.randn(n, k)), torch.nn.Parameter(torch.randn(n))
    def forward(self, x): return extension.fused(x.contiguous(), self.weight.contiguous(), self.bias)
'''


def test_a_right_one_passes_and_one_that_does_not_transpose_fails(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(REFERENCE)
    (tmp_path / "right.py").write_text(CANDIDATE)
    wrong = CANDIDATE.replace("CUBLAS_OP_T", "CUBLAS_OP_N").replace("w.data_ptr<float>(), k", "w.data_ptr<float>(), n")
    (tmp_path / "wrong.py").write_text(wrong)
    failed, right = judge(tmp_path / "problem.py", tmp_path / "right.py", tmp_path / "wrong.py").rows  # the worst first
    assert right.status is Status.PASS, right.verdict
    assert failed.status is Status.FAIL
    assert failed.verdict is not None
    assert {f.check for f in failed.verdict.failures} >= {"values"}
