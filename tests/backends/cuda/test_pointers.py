"""Pointers as arguments: null, pointers to pointers, addresses in structures, and torch's packed accessors."""

from __future__ import annotations

import ctypes

import pytest
import torch

import kernelsim
import opwright as ow
from opwright.errors import LaunchError, SimulatorError
from opwright.internals import operators

pytestmark = pytest.mark.compiler

SUMS = """
struct View { const float* data; int n; };
__global__ void optional(const float* x, const float* bias, float* y) { y[0] = x[0] + (bias ? bias[0] : 0); }
__global__ void total(const float* const* parts, float** outs, int count, int n) {
  for (int p = 0; p < count; p++) for (int i = 0; i < n; i++) outs[0][i] += parts[p][i];
}
__global__ void gather(const float* x, float* y, const long long* at, const unsigned long *__restrict__ to, int n) {
  for (int i = 0; i < n; i++) y[to[i]] += x[at[i]];
}
__global__ void through(View view, float* y) { for (int i = 0; i < view.n; i++) y[0] += view.data[i]; }
"""


def test_zero_and_none_are_null_pointers() -> None:
    kernels, x, y = ow.cuda_module(SUMS), torch.ones(1), torch.zeros(1)
    for null in (0, None):
        kernels["optional"][1, 1](x, null, y)
        assert y.item() == 1
    kernels["optional"][1, 1](x, x, y)
    assert y.item() == 2
    with pytest.raises(SimulatorError, match="a null pointer"):
        kernels["optional"][1, 1](0, x, y)
    with pytest.raises(LaunchError, match="must be a tensor, got int 8"):
        kernels["optional"][1, 1](x, 8, y)


def test_a_pointer_to_pointers_takes_a_list_of_tensors_whose_accesses_are_checked() -> None:
    kernels, parts, out = ow.cuda_module(SUMS), [torch.ones(4), torch.full((4,), 2.0)], torch.zeros(4)
    kernels["total"][1, 1](parts, [out], 2, 4)
    assert out.tolist() == [3] * 4
    with pytest.raises(SimulatorError, match=r"out-of-bounds: reads 4 bytes just past the end of argument 'parts'"):
        kernels["total"][1, 1](parts, [torch.zeros(8)], 2, 5)
    with pytest.raises(SimulatorError, match="out-of-bounds: reads 8 bytes"):
        kernels["total"][1, 1](parts, [out], 3, 4)
    with pytest.raises(LaunchError, match="elements, got float64"):
        kernels["total"][1, 1]([torch.ones(4, dtype=torch.float64)], [out], 1, 4)


def test_a_pointer_to_const_integers_of_64_bits_takes_a_list_of_them() -> None:
    gather, x, y = ow.cuda_module(SUMS)["gather"], torch.arange(4.0), torch.zeros(4)
    gather[1, 1](x, y, [3, 1], (0, 2), 2)
    assert y.tolist() == [3, 0, 1, 0]
    with pytest.raises(SimulatorError, match=r"out-of-bounds: reads 8 bytes just past the end of argument 'at'"):
        gather[1, 1](x, y, [3], [0, 2], 2)
    for wrong in ([3, 1.5], [3, None], [3, 1 << 63]):
        with pytest.raises(LaunchError, match="argument 3"):
            gather[1, 1](x, y, wrong, [0, 2], 2)
    with pytest.raises(LaunchError, match="between 0 and 18446744073709551615, got -1"):
        gather[1, 1](x, y, [3, 1], [0, -1], 2)
    with pytest.raises(LaunchError, match="argument 2, `float\\*`, must be a tensor, got list"):
        gather[1, 1](x, [0.0, 0.0], [0], [0], 1)


@pytest.mark.parametrize("at_once", [True, False])
def test_words_that_launches_write_are_whole(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not at_once:  # a torch without the operation
        monkeypatch.setattr(operators, "_add_to_each", None)
    words = [0, -1, 5, 2**62 + 1, -(2**63), *range(200)]
    assert operators.words_by_launches(words, torch.device("cpu")).tolist() == words


def test_addresses_in_structures_are_declared() -> None:
    class View(ctypes.Structure):
        _fields_ = (("data", ctypes.c_void_p), ("n", ctypes.c_int))

    kernels, x, y = ow.cuda_module(SUMS), torch.ones(4), torch.zeros(1)
    with pytest.raises(SimulatorError, match="out-of-bounds"):
        kernels["through"][1, 1](View(x.data_ptr(), 4), y)
    with kernelsim.options(reachable=[x]):
        y.zero_()
        kernels["through"][1, 1](View(x.data_ptr(), 4), y)
        assert y.item() == 4
        with pytest.raises(SimulatorError, match="just past the end of a reachable tensor"):
            kernels["through"][1, 1](View(x.data_ptr(), 5), y)


ACCESSORS = """
#include <torch/extension.h>
template <typename scalar_t>
__global__ void scale(const torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> x,
                      torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> y) {
  CUDA_KERNEL_LOOP(i, x.size(0) * x.size(1)) {
    at::acc_type<scalar_t, true> v = x[i / x.size(1)][i % x.size(1)];
    y[i / x.size(1)][i % x.size(1)] = static_cast<scalar_t>(v * 2) + scalar_t(1);
  }
}
torch::Tensor scaled(torch::Tensor x) { return x; }
"""


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(("cpp", "dtype"), [("float", torch.float32), ("c10::Half", torch.float16)])
def test_packed_accessors_take_tensors(cpp: str, dtype: torch.dtype, bits: int) -> None:
    x, y = torch.randn(3, 8).to(dtype)[:, ::2], torch.zeros(4, 3, dtype=dtype).T
    kernel = ow.cuda_module(ACCESSORS.replace("Accessor32", f"Accessor{bits}"))[f"scale<{cpp}>"]
    kernel[1, 32](x, y)
    torch.testing.assert_close(y, x * 2 + 1)
    with pytest.raises(LaunchError, match="takes a tensor of 2 dims, but one of 1 came"):
        kernel[1, 32](x[0], y)
    with pytest.raises(LaunchError, match="elements, got float64"):
        kernel[1, 32](x.double(), y)


HALVES = """
#include <ATen/ATen.h>
__global__ void add(const int4* x, int4* copy, c10::Half* out, at::Half a, c10::BFloat16 b) {
  copy[threadIdx.x] = x[threadIdx.x];
  const c10::Half* halves = (const c10::Half*)(x + threadIdx.x);
  for (int i = 0; i < 8; i++) out[8 * threadIdx.x + i] = float(halves[i]) + float(a) * float(b);
}
"""


@pytest.mark.compiler
def test_halves_of_torch_are_numbers_and_vectors_of_integers_take_any_dtype() -> None:
    x, copy, out = torch.randn(16).half(), torch.zeros(16).half(), torch.zeros(16).half()
    kernel = ow.cuda_module(HALVES)["add"]
    kernel[1, 2](x, copy, out, 0.5, 3)
    assert torch.equal(copy, x)
    assert torch.equal(out, (x.float() + 1.5).half())
    with pytest.raises(LaunchError, match=r"argument 4, `c10::Half`, must be a float, got str"):
        kernel[1, 2](x, copy, out, "0.5", 3)
    with pytest.raises(LaunchError, match="multiple of 16 bytes"):
        kernel[1, 1](x[1:9], copy, out, 0.5, 3)


def test_a_stride_that_a_packed_accessor_cannot_hold_is_refused() -> None:
    x, y = torch.zeros(1).as_strided((1, 4), (1 << 31, 0)), torch.zeros(1, 4)
    with pytest.raises(LaunchError, match=r"(?s)strides of 32 bits.*declare it as PackedTensorAccessor64"):
        ow.cuda_module(ACCESSORS)["scale<float>"][1, 32](x, y)
    ow.cuda_module(ACCESSORS.replace("Accessor32", "Accessor64"))["scale<float>"][1, 32](x, y)
    assert torch.equal(y, torch.ones(1, 4))


INFO = """
#include <ATen/cuda/detail/TensorInfo.cuh>
using Info = at::cuda::detail::TensorInfo<float, int>;
__global__ void gather(const Info x, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x.data[at::cuda::detail::IndexToOffset<float, int, -1>::get(i, x)];
}
"""


class Info(ctypes.Structure):
    """torch's own order of members."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.c_int * 25),
        ("strides", ctypes.c_int * 25),
        ("dims", ctypes.c_int),
    )


def info_of(x: torch.Tensor) -> Info:
    numbers = ctypes.c_int * 25
    return Info(x.data_ptr(), numbers(*x.shape), numbers(*x.stride()), x.dim())


def test_a_strided_tensor_as_torchs_tensor_info() -> None:
    x = torch.arange(24.0).view(2, 3, 4).transpose(0, 2)
    out = torch.zeros(24)
    with kernelsim.options(reachable=[x]):
        ow.cuda_module(INFO)["gather"][1, 32](info_of(x), out, 24)
    assert torch.equal(out, x.flatten())


def test_an_element_past_a_tensor_info_is_reported() -> None:
    x = torch.arange(24.0)
    with kernelsim.options(reachable=[x]), pytest.raises(SimulatorError, match="out-of-bounds: reads 4 bytes"):
        ow.cuda_module(INFO)["gather"][1, 32](info_of(x), torch.zeros(32), 32)


@pytest.mark.gpu
@pytest.mark.nvrtc
def test_a_tensor_info_on_a_gpu() -> None:
    x = torch.arange(24.0, device="cuda").view(2, 3, 4).transpose(0, 2)
    out = torch.zeros(24, device="cuda")
    ow.cuda_module(INFO)["gather"][1, 32](info_of(x), out, 24)
    assert torch.equal(out, x.flatten())


@pytest.mark.gpu
@pytest.mark.nvrtc
def test_a_list_of_tensors_is_copied_once() -> None:
    kernel = ow.cuda_module(SUMS)["total"]
    parts, out = [torch.ones(4, device="cuda"), torch.full((4,), 2.0, device="cuda")], torch.zeros(4, device="cuda")
    kernel[1, 1](parts, [out], 2, 4)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # an error where a call waits for the GPU
    try:
        for _ in range(2):
            kernel[1, 1](parts, [out], 2, 4)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert out.tolist() == [9.0] * 4
    kernel[1, 1](parts[::-1], [out], 1, 4)
    assert out.tolist() == [11.0] * 4
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        kernel[1, 1](parts, [out], 1, 4)
    side.synchronize()
    assert out.tolist() == [12.0] * 4


@pytest.mark.gpu
@pytest.mark.nvrtc
def test_a_graph_has_the_words_of_its_lists() -> None:
    kernels = ow.cuda_module(SUMS)
    parts, out = [torch.full((4,), float(i), device="cuda") for i in range(300)], torch.zeros(4, device="cuda")
    at = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # nothing ran before it
        kernels["total"][1, 1](parts, [out], 300, 4)
        kernels["gather"][1, 1](out, at, [3, 1], [0, 2], 2)
    for i in range(300):  # what eager calls keep is dropped after 256
        kernels["total"][1, 1](parts[i:], [torch.zeros(4, device="cuda")], 1, 4)
    graph.replay()
    graph.replay()
    assert out.tolist() == [2.0 * sum(range(300))] * 4
    assert at.tolist() == [3.0 * sum(range(300)), 0.0, 3.0 * sum(range(300)), 0.0]
