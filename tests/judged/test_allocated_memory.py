"""A candidate that adds to memory of its own is judged: it must have set the memory to zero."""

from __future__ import annotations

from pathlib import Path

import pytest

from opwright.judged.run import judge
from opwright.results import Status

pytestmark = [pytest.mark.compiler, pytest.mark.slow]  # whole checks of two candidates

REFERENCE = """
import torch
def divided(x): return x / (x * x).sum()
def get_inputs(): return [torch.randn(300)]
"""
CANDIDATE = r'''
from torch.utils.cpp_extension import load_inline
SOURCE = """
#include <torch/extension.h>
__global__ void add_squares(const float* x, float* sum, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(sum, x[i] * x[i]);
}
__global__ void divide(const float* x, float* y, const float* sum, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] / *sum;
}
torch::Tensor divided(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const int n = x.numel(), blocks = (n + 255) / 256;
  if (n == 0) return y;
  float* sum;
  cudaMalloc(&sum, sizeof(float));
  cudaMemset(sum, 0, sizeof(float));
  add_squares<<<blocks, 256>>>(x.data_ptr<float>(), sum, n);
  divide<<<blocks, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), sum, n);
  cudaFree(sum);
  return y;
}
"""
DECLARATION = "torch::Tensor divided(torch::Tensor x);"
extension = load_inline("divided", cpp_sources=DECLARATION, cuda_sources=SOURCE, functions=["divided"])
def divided(x): return extension.divided(x.contiguous())
'''


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ("", "", Status.PASS),
        ("cudaMemset(sum, 0, sizeof(float));", "", Status.FAIL),
    ],
)
def test_memory_must_be_set_before_it_is_added_to(tmp_path: Path, old: str, new: str, status: Status) -> None:
    (tmp_path / "ref.py").write_text(REFERENCE)
    (tmp_path / "ours.py").write_text(CANDIDATE.replace(old, new))
    report = judge(f"{tmp_path}/ref.py:divided", f"{tmp_path}/ours.py:divided")
    assert [row.status for row in report.rows] == [status]
