"""Host functions on ATen's tensors, with what published extensions have in their files."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float, Float32
from torch import Tensor

import opwright as ow
from opwright.backends import get_backend
from opwright.backends.build_tools import build_tools
from opwright.backends.native import aten_headers
from opwright.backends.native.abi import INCLUDE
from opwright.backends.native.host_function import TORCH
from opwright.backends.native.tensor_access import LIBRARIES
from opwright.errors import KernelError

# Types of numbers that torch's dispatcher does not take, a vector of results, and two registrations.
EXTENSION = """\
#include <torch/extension.h>
#include <vector>

namespace shifting {
std::vector<torch::Tensor> shifted(
    torch::Tensor x, int n, float a, bool up, std::vector<int64_t> dims, const c10::optional<torch::Tensor> other) {
  TORCH_CHECK(x.dim() == 1, "x must have one dim");
  auto y = x * a + (up ? n : -n);
  if (other) y = y + *other;
  return {y, y.sum(at::IntArrayRef(dims))};
}
}  // namespace shifting

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("shifted", &shifting::shifted, "shift", py::arg("x")); }
TORCH_LIBRARY(shifting, m) {
  m.def("shifted(Tensor x, int n, float a, bool up, int[] dims, Tensor? other) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(shifting, CPU, m) { m.impl("shifted", &shifting::shifted); }
"""


def shifted(
    x: Float[Tensor, " k"], n: int, a: float, up: bool, dims: list[int], other: Float[Tensor, " k"] | None = None
) -> tuple[Float[Tensor, " k"], Float[Tensor, ""]]:
    y = x * a + (n if up else -n) + (0 if other is None else other)
    return y, y.sum(0)


def operator(folder: Path, text: str, **options: Any) -> tuple[Any, Any]:
    (folder / "extension.cpp").write_text(text)
    made = ow.op(f"aten_{uuid.uuid4().hex[:8]}::shifted")(shifted)
    return made, made.cpp(folder / "extension.cpp", entry="shifting::shifted", **options)


@pytest.mark.timeout(1200)
@pytest.mark.slow  # reads all of ATen's headers once: a minute and more on two cores
@pytest.mark.compiler
def test_a_published_extension_runs_unchanged(tmp_path: Path) -> None:
    op, kernel = operator(tmp_path, EXTENSION, abi="aten")
    x = torch.randn(5)
    for other in (None, x):
        for got, expected in zip(op(x, 3, 0.5, True, [0], other), shifted(x, 3, 0.5, True, [0], other), strict=True):
            torch.testing.assert_close(got, expected)
    assert not hasattr(torch.ops.shifting, "shifted")  # its own registrations do not run
    with pytest.raises(ValueError, match="takes an integer of 32 bits, but got 1099511627776"):
        kernel(x, 1 << 40, 0.5, True, [0])
    two = EXTENSION.replace("return {y, y.sum(at::IntArrayRef(dims))}", "return {y}")
    _, wrong = operator(tmp_path, two, abi="aten")
    with pytest.raises(RuntimeError, match="the kernel returned 1 tensors, but the operator has 2 outputs"):
        wrong(x, 3, 0.5, True, [0])


CUDA_EXTENSION = """\
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/extension.h>

__global__ void twice(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2 * x[i];
}

// Compiled only as torch compiles extensions: ambiguous beside CUDA's operators on __half.
__device__ bool is_less(c10::Half a, c10::Half b) { return a < b; }

torch::Tensor doubled(const torch::Tensor x) {
  const at::cuda::OptionalCUDAGuard guard(x.device());
  auto out = torch::empty_like(x);
  twice<<<(x.numel() + 127) / 128, 128, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), out.data_ptr<float>(), x.numel());
  return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("doubled", &doubled); }
"""


@pytest.mark.timeout(1200)
@pytest.mark.slow  # nvcc reads ATen's headers: a minute on two cores
@pytest.mark.nvcc
@pytest.mark.skipif(not (LIBRARIES / "libtorch_cuda.so").is_file(), reason="torch was built without CUDA")
@pytest.mark.exhaustive  # the one in C++ runs
def test_a_published_cuda_extension_builds_unchanged(tmp_path: Path) -> None:
    (tmp_path / "doubled.cu").write_text(CUDA_EXTENSION)
    name = f"aten_{uuid.uuid4().hex[:8]}"

    @ow.op(f"{name}::doubled")
    def doubled(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return 2 * x

    kernel = doubled.cuda(tmp_path / "doubled.cu", abi="aten", options=["-gencode=arch=compute_90,code=sm_90"])
    artifact = get_backend("cuda").compile(kernel.spec, kernel.contract, build_tools())
    torch.ops.load_library(str(artifact.file))
    operator = getattr(torch.ops.opwright_kernels, artifact.entry)
    assert str(operator.default._schema).endswith("(Tensor x) -> Tensor")
    if torch.cuda.is_available():
        x = torch.randn(1000, device="cuda")
        torch.testing.assert_close(kernel(x), 2 * x)


def test_atens_tensors_without_the_option_are_refused_with_what_to_pass(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"extension.cpp uses ATen's tensors, of <torch/extension.h>") as error:
        operator(tmp_path, EXTENSION)
    assert "pass abi='aten'" in error.value.fix
    with pytest.raises(KernelError, match="abi must be 'stable' or 'aten', got 'pybind'"):
        operator(tmp_path, EXTENSION, abi="pybind")


@pytest.mark.parametrize(
    "text",
    [
        "#include <torch/csrc/stable/tensor.h>\ntorch::stable::Tensor f();",
        "#include <ATen/ATen.h>\nint f();",  # a macro of it, perhaps
        "// #include <torch/extension.h>\nat::Tensor f();",
    ],
)
def test_sources_without_atens_tensors_are_left_alone(text: str) -> None:
    assert aten_headers.used(text) == ""


@pytest.mark.parametrize(
    ("text", "all_of_them"),
    [
        ("torch::Tensor f(torch::Tensor x) { return torch::relu(x); }", False),
        ("// py::object\nat::Tensor f();", False),
        ("at::Tensor f(py::object x);", True),
        ("torch::nn::Linear layer(1, 2);", True),
        ("struct F : torch::autograd::Function<F> {};", True),
        ("#include <torch/extension.h>\nPyObject* f();", True),
        ("#include <Python.h>\n#include <torch/all.h>\nPyObject* f();", False),
        ("// #include <Python.h>\n#include <torch/all.h>\nPyObject* f();", True),
        ("#include <Python.h>\n#include <torch/extension.h>\nat::Tensor f(py::object x);", True),
    ],
)
def test_the_whole_of_the_headers_is_read_where_it_is_needed(text: str, all_of_them: bool) -> None:
    assert aten_headers.needs_all_headers(text) is all_of_them


def test_the_few_headers_have_all_of_torchs_frontend_but_the_parts_that_are_looked_for() -> None:
    frontend = TORCH / "include" / "torch" / "csrc" / "api" / "include" / "torch" / "all.h"
    parts = re.findall(r"#include <torch/(\w+)\.h>", frontend.read_text())
    few = re.findall(r"#include <torch/(\w+)\.h>", (INCLUDE / "opwright" / "aten.h").read_text())
    missing = {part for part in parts if part not in few}
    assert {part for part in missing if not aten_headers.needs_all_headers(f"torch::{part}::f();")} == set()
    assert {"nn", "optim", "data"} <= missing  # those take longest to read


# Each name is from another header than ATen/ATen.h; an extension that had it failed to compile.
FRONTEND = """\
#include <torch/script.h>
at::Tensor filled(const at::Tensor& x, double value) {
  auto out = torch::zeros_like(x);
  float* data = out.mutable_data_ptr<float>();
  at::parallel_for(0, x.numel(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) data[i] = value;
  });
  torch::NoGradGuard guard;
  return torch::cuda::device_count() < 0 ? torch::fft::fft(x) : torch::special::expit(out);
}
"""


@pytest.mark.timeout(1200)
@pytest.mark.slow  # reads all of ATen's headers once: a minute and more on two cores
@pytest.mark.compiler
def test_functions_of_torchs_frontend_are_found(tmp_path: Path) -> None:
    (tmp_path / "filled.cpp").write_text(FRONTEND)

    @ow.op(f"aten_{uuid.uuid4().hex[:8]}::filled")
    def filled(x: Float32[Tensor, " n"], value: float) -> Float32[Tensor, " n"]:
        return torch.full_like(x, value).sigmoid()

    kernel = filled.cpp(tmp_path / "filled.cpp", abi="aten")
    torch.testing.assert_close(kernel(torch.ones(9), 0.5), torch.full((9,), 0.5).sigmoid())
