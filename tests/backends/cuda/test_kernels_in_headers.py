"""A ``.cu`` file that includes the header with its kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import kernelsim
import opwright as ow
from opwright.errors import KernelError, SimulatorError

HEADER = """#pragma once
#include "functions.cuh"
namespace demo {
template <class T> __global__ void scale(const T* x, T* out, T a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = product(x[i], a);
}
}
"""
FUNCTIONS = """#pragma once
template <class T> __device__ T product(T a, T b) { return a * b; }
__global__ void twice(float* x) { x[threadIdx.x] = product(x[threadIdx.x], 2.f); }
"""
SOURCE = """#include <torch/extension.h>
#include "scale.cuh"
torch::Tensor scale(torch::Tensor x, double a) {
  auto out = torch::empty_like(x);
  demo::scale<float><<<1, 32>>>(x.data_ptr<float>(), out.data_ptr<float>(), a, x.numel());
  return out;
}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name, text in {"scale.cuh": HEADER, "functions.cuh": FUNCTIONS, "scale.cu": SOURCE}.items():
        (tmp_path / name).write_text(text)
    return tmp_path / "scale.cu"


@pytest.mark.compiler
def test_the_simulator_runs_them_and_names_the_header_s_lines(file: Path) -> None:
    kernels, x, out = ow.cuda_module(file), torch.arange(8.0), torch.zeros(8)
    kernels["scale<float>"][1, 32](x, out, 3.0, 8)
    assert torch.equal(out, 3 * x)
    with pytest.raises(SimulatorError, match=r"scale.cuh:6: out-of-bounds.*'x'.*\n +if \(i < n\) out\[i\] = product"):
        kernels["scale<float>"][1, 32](x, out, 3.0, 9)
    assert kernelsim.cuda(file).names == ("scale", "twice")
    assert kernelsim.cuda(file)["twice"][1, 8](x)
    assert torch.equal(x, 2 * torch.arange(8.0))


@pytest.mark.nvrtc
def test_nvrtc_compiles_them(file: Path) -> None:
    kernels = ow.cuda_module(file)
    for name in ("scale<float>", "twice"):
        assert kernels.entry("sm_90", name)[1].name.startswith(("demo::scale", "twice"))


def test_names_that_no_file_has_are_refused(file: Path) -> None:
    with pytest.raises(KernelError, match=r"scale.cu: the kernel must be one of \['scale', 'twice'\], got 'product'"):
        ow.cuda_module(file)["product"]
    with pytest.raises(KernelError, match="'scale' is a template"):
        ow.cuda_module(file)["scale"]
    (file.parent / "scale.cuh").write_text("#pragma once\n")
    with pytest.raises(KernelError, match="must define a __global__ function, got none"):
        ow.cuda_module(file)
