"""Host functions in ``.cu`` files without a GPU: those that only launch are simulated, others are refused by a line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.backends.cuda.host.part import HostPart
from opwright.backends.cuda.module import CudaModule
from opwright.backends.simulation import CudaSource
from opwright.errors import NotSimulatedError, SimulatorError
from opwright.machine import this_machine
from opwright.results import Accepted, Refused
from opwright.target import Engine, Target

pytestmark = pytest.mark.compiler

KERNELS = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be on a GPU")
#define CHECK_INPUT(x) CHECK_CUDA(x); TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define HALF_OF_A_BLOCK 64  // threads
constexpr int THREADS = 2 * HALF_OF_A_BLOCK;
namespace demo {
template <class T, int N> __global__ void scale(const T* x, const T* bias, T* out, float a, int n, bool twice) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = T(float(x[i]) * a * N * (twice ? 2 : 1) + (bias ? float(bias[i]) : 0.f));
}
__global__ void rows(const float4* x, float* out, int m, int n) {
  extern __shared__ float row[];
  for (int i = threadIdx.x; i < n / 4; i += blockDim.x) row[i] = x[blockIdx.x * (n / 4) + i].x;
  __syncthreads();
  if (threadIdx.x) return;
  float sum = 0;
  for (int i = 0; i < n / 4; i++) sum += row[i];
  out[blockIdx.y * m + blockIdx.x] = sum;
}
inline int blocks(int64_t n, int threads = THREADS);
static int64_t blocks_for(int64_t n) { return (n + THREADS - 1) / THREADS; }
}
"""
SCALE = """
torch::Tensor scale(torch::Tensor x, std::optional<torch::Tensor> bias, double a, bool twice) {
  CHECK_INPUT(x);
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto out = torch::empty_like(x);
  const int n = static_cast<int>(x.numel());
  if (n == 0) { return out; }
  auto stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "scale", ([&] {
    demo::scale<scalar_t, 3><<<demo::blocks_for(n), THREADS, 0, stream>>>(
        x.data_ptr<scalar_t>(), bias.has_value() ? bias->data_ptr<scalar_t>() : nullptr, out.data_ptr<scalar_t>(), a, n,
        twice);
  }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
"""
ROWS = """
std::tuple<at::Tensor, at::Tensor> rows(const at::Tensor& x) {
  int64_t m = x.size(0), n = x.size(-1);
  at::Tensor out = torch::zeros({2, m}, x.options().dtype(torch::kFloat32)), last = x.new_zeros({m});
  dim3 grid(m, 1), block{32};
  int turns = 0;
  for (int i = 0; i < 3; i++) {
    int m = i;  // another variable
    turns += m;
  }
  if (turns != 3 || (n & 3)) throw std::runtime_error("n must be a multiple of 4");
  else if (m > 0) {
    demo::rows<<<grid, block, n / 4 * sizeof(float)>>>(
        reinterpret_cast<const float4*>(x.const_data_ptr<float>()), out.mutable_data_ptr<float>(), int(m), (int)n);
  }
  return std::make_tuple(out, last);
}
"""


def host_part(text: str) -> HostPart:
    return HostPart(CudaModule(CudaSource(KERNELS + text)))


def line_of(text: str, part: str) -> int:
    return (KERNELS + text).partition(part)[0].count("\n") + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_function_that_only_launches_is_simulated(dtype: torch.dtype) -> None:
    scale = host_part(SCALE).function("scale")
    x, bias = torch.randn(300).to(dtype), torch.randn(300).to(dtype)
    torch.testing.assert_close(scale(x, bias, 0.5, False), (x.float() * 1.5 + bias.float()).to(dtype))
    torch.testing.assert_close(scale(x, None, 0.5, True), (x.float() * 3).to(dtype))
    assert scale(x[:0], None, 0.5, True).shape == (0,)


def test_blocks_loops_vectors_and_shared_memory() -> None:
    x = torch.randn(5, 16)
    out, last = host_part(ROWS).function("rows")(x)
    torch.testing.assert_close(out[0], x[:, ::4].sum(1))
    assert not out[1].any()
    assert last.shape == (5,)


PUBLISHED = """
__global__ void sums(const float* x, float* out, int m, int n) {
  int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row < m && column < n) atomicAdd(out + row, x[row * n + column]);
}
torch::Tensor sums(torch::Tensor x, torch::optional<torch::Tensor> start) {
  if (x.dim() != 2) AT_ERROR("x must have two dims");
  const auto sizes = x.sizes().vec();
  int m = sizes[0], n = sizes.back(), width = 1;
  while (width < n && width < 16) width *= 2;
  auto options = torch::TensorOptions().dtype(x.dtype()).device(x.device());
  auto out = start.has_value() ? start.value().clone() : torch::zeros({m}, x.device());
  const dim3 block(width, HALF_OF_A_BLOCK);  // to a parser, a declaration of a function
  const dim3 grid((n + block.x - 1) / block.x, (m + block.y - 1) / block.y);
  sums<<<grid, block>>>(x.data_ptr<float>(), out.data_ptr<float>(), m, n);
  cudaError_t error = cudaGetLastError();
  TORCH_CHECK(error == cudaSuccess, cudaGetErrorString(error));
  return out.view({-1, 1}).transpose(0, 1).squeeze(0);
}
"""


def test_what_published_extensions_use_is_simulated() -> None:
    sums, x = host_part(PUBLISHED).function("sums"), torch.randn(70, 19)
    torch.testing.assert_close(sums(x, None), x.sum(1))
    torch.testing.assert_close(sums(x, torch.ones(70)), x.sum(1) + 1)
    with pytest.raises(RuntimeError, match=r"AT_ERROR\(.x must have two dims"):
        sums(x[0], None)
    with pytest.raises(NotSimulatedError, match="view is not simulated with these arguments"):
        host_part(PUBLISHED.replace("out.view({-1, 1})", 'out.view("all")')).function("sums")(x, None)
    with pytest.raises(NotSimulatedError, match="the field w"):
        host_part(PUBLISHED.replace("block.y - 1", "block.w - 1")).function("sums")(x, None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(n + block.x - 1) / block.x", "n / block.x"),  # the last columns
        ("(m + block.y - 1) / block.y", "1"),
        ("block(width, HALF_OF_A_BLOCK)", "block(width)"),
    ],
)
def test_wrong_blocks_of_published_extensions_are_not_hidden(old: str, new: str) -> None:
    x = torch.randn(150, 19)
    out = host_part(PUBLISHED.replace(old, new)).function("sums")(x, None)
    assert torch.allclose(out, x.sum(1), atol=1e-4) is (new == "block(width)")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(8, 2).T, r"CHECK_INPUT|must be contiguous"),
        (torch.randn(8).bfloat16(), "AT_DISPATCH_FLOATING_TYPES_AND_HALF has no torch.bfloat16"),
    ],
)
def test_what_the_function_checks_is_checked(x: Tensor, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        host_part(SCALE).function("scale")(x, None, 1.0, False)
    with pytest.raises(RuntimeError, match="multiple of 4"):
        host_part(ROWS).function("rows")(torch.randn(3, 5))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("demo::blocks_for(n), THREADS", "demo::blocks_for(n) + 1, THREADS", ""),  # more threads than needed are right
        ("a, n,\n", "a, n + 1,\n", "out-of-bounds: reads"),
        ("if (n == 0) { return out; }", "", "a grid must have blocks, got 0"),
        ("const int n = static_cast<int>(x.numel())", "const int n = x.numel() * 10000000000", "does not fit into int"),
        ("x.data_ptr<scalar_t>()", "x.data_ptr<double>()", "expected elements of double, got torch.float32"),
    ],
)
def test_wrong_functions_are_found(old: str, new: str, message: str) -> None:
    assert old in SCALE
    scale = host_part(SCALE.replace(old, new)).function("scale")
    x = torch.randn(0 if "blocks, got" in message else 100)
    if not message:
        assert scale(x, None, 1.0, False).shape == (100,)
        return
    with pytest.raises((SimulatorError, RuntimeError, ow.errors.LaunchError), match=message):
        scale(x, None, 1.0, False)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("auto out = torch::empty_like(x);", "auto out = torch::cholesky(x);", "a call of cholesky"),
        ("auto out = torch::empty_like(x);", "auto out = x.cholesky();", "the method cholesky"),
        (
            "  C10_CUDA_KERNEL",
            "  cudaMemcpy2D(0, 0, 0);\n  C10_CUDA_KERNEL",
            "a call of cudaMemcpy2D",
        ),
        ("  C10_CUDA_KERNEL", "  try {} catch (...) {}\n  C10_CUDA_KERNEL", "a try statement"),
        ("  C10_CUDA_KERNEL", "  curandState state;\n  C10_CUDA_KERNEL", "a variable of type curandState"),
        (
            "demo::scale<scalar_t, 3><<<",
            "demo::scale<<<",
            "the launch of the template demo::scale without its arguments",
        ),
        ("AT_DISPATCH_FLOATING_TYPES_AND_HALF", "AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES", "AT_DISPATCH_FLOATING_AND"),
    ],
)
def test_what_is_not_known_is_refused_before_anything_runs(old: str, new: str, what: str) -> None:
    text = SCALE.replace(old, new)
    with pytest.raises(
        NotSimulatedError, match=rf"<cuda source>:\d+: a simulated host function must only .*{what}"
    ) as caught:
        host_part(text).function("scale")
    first = new.strip().splitlines()[0].partition(";")[0][:20]
    assert f":{line_of(text, first)}:" in str(caught.value)
    assert "ow.cuda_module(file)" in (caught.value.fix or "")


def operator(tmp_path: Path, text: str) -> ow.Op:
    (tmp_path / "scale.cu").write_text(text)

    @ow.op("host_part::twice")
    def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return 2 * x

    twice.cuda(tmp_path / "scale.cu", entry="twice")
    return twice


TWICE = """
#include <opwright/tensor.h>
using torch::stable::Tensor;
__global__ void twice_kernel(const float* x, float* out, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = 2 * x[i];
}
Tensor twice(const Tensor& x) {
  Tensor in = opwright::contiguous(x), out = opwright::empty_like(in);
  const int64_t n = in.numel();
  if (n)
    twice_kernel<<<(n + 255) / 256, 256, 0, opwright::current_stream(x)>>>(
        in.const_data_ptr<float>(), out.mutable_data_ptr<float>(), n);
  return out;
}
"""
SIMULATOR = Target("cpu", Engine.SIMULATOR)
WITHOUT_NVCC = dataclasses.replace(this_machine(), gpus=(), nvcc=None)


def test_without_nvcc_a_function_that_does_more_is_refused_with_the_line(tmp_path: Path) -> None:
    twice = operator(tmp_path, TWICE)
    assert isinstance(twice.kernels["cuda"].probe(SIMULATOR, WITHOUT_NVCC), Accepted)
    (tmp_path / "scale.cu").write_text(TWICE.replace("return out", "return torch::stable::transpose(out, 0, 0)"))
    refused = twice.kernels["cuda"].probe(SIMULATOR, WITHOUT_NVCC)
    assert isinstance(refused, Refused)
    assert "scale.cu:14: a simulated host function must only" in refused.reason
    assert "ow.cuda_module(file)" in refused.remedy


@pytest.mark.nvcc
@pytest.mark.slow  # nvcc takes some seconds for each file
@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ("i < n", "i < n", "pass"),
        ("i < n", "i <= n", "fail"),
        ("in.numel()", "in.numell()", "fail"),
        ("return out", "return torch::stable::transpose(out, 0, 0)", "refused"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_check_compiles_it_and_simulates_it_where_it_can(tmp_path: Path, old: str, new: str, status: str) -> None:
    (verdict,) = ow.check(operator(tmp_path, TWICE.replace(old, new)), checks=["values"]).verdicts
    assert verdict.status == status, verdict
    if "numell" in new:
        assert "scale.cu(10): error" in verdict.findings[0].message
