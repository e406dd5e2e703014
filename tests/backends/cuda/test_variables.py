"""``__device__`` and ``__constant__`` variables, set and read from Python."""

from __future__ import annotations

import ctypes

import pytest
import torch

import kernelsim
import opwright as ow
from opwright.errors import KernelError, LaunchError

SOURCE = """
struct Pair { int a; float b; };
namespace weights { __constant__ float table[4]; }
static __constant__ int offset = 3;
__constant__ Pair pair;
__device__ int counter;
__device__ const float fixed[2] = {1, 2};
__global__ void scale(const float* x, float* y, int n) {
  int i = threadIdx.x;
  if (i < n) y[i] = x[i] * weights::table[i % 4] + offset + fixed[0] * 0;
  if (i < n) atomicAdd(&counter, 1);
}
__global__ void read(float* y) { y[0] = counter; y[1] = pair.a * pair.b; counter = -1; }
template <class T> __global__ void only_template(T* y) { y[0] = weights::table[1]; }
"""


@pytest.fixture
def kernels() -> ow.CudaModule:
    return ow.cuda_module(SOURCE)


def run(kernels: ow.CudaModule, device: str, *, checked: bool = True) -> torch.Tensor:
    x, y = torch.ones(8, device=device), torch.zeros(8, device=device)
    with kernelsim.options(checked=checked):
        kernels["scale"][1, 32](x, y, 8)
    return y.cpu()


@pytest.mark.compiler
@pytest.mark.parametrize("checked", [True, False])
def test_a_kernel_uses_what_python_sets(kernels: ow.CudaModule, checked: bool) -> None:
    with kernelsim.options(checked=checked):
        kernels.variable("table", "cpu").set([1, 2, 3, 4])
        assert run(kernels, "cpu", checked=checked).tolist() == [4, 5, 6, 7] * 2
        kernels.variable("offset", "cpu").set(10)
        kernels.variable("table", "cpu").set(torch.tensor([0.5, 0, 0, 0]))
        assert run(kernels, "cpu", checked=checked).tolist() == [10.5, 10, 10, 10] * 2
        assert kernels.variable("table", "cpu").get().tolist() == [0.5, 0, 0, 0]


@pytest.mark.compiler
def test_kernels_of_a_source_share_their_variables(kernels: ow.CudaModule) -> None:
    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_float))

    kernels.variable("pair", "cpu").set(Pair(3, 0.5))
    kernels.variable("counter", "cpu").set(100)
    kernels.variable("table", "cpu").set([1, 1, 1, 1])
    run(kernels, "cpu")
    out = torch.zeros(2)
    kernels["read"][1, 1](out)
    assert out.tolist() == [108, 1.5]
    assert kernels.variable("counter", "cpu").get().tolist() == [-1]
    assert kernels.variable("pair", "cpu").nbytes == 8


@pytest.mark.compiler
def test_templates_use_what_python_sets(kernels: ow.CudaModule) -> None:
    kernels.variable("table", "cpu").set([1, 7, 3, 4])
    out = torch.zeros(1)
    kernels["only_template<float>"][1, 1](out)
    assert out.item() == 7


@pytest.mark.compiler
def test_a_wrong_name_dtype_or_size_is_an_error(kernels: ow.CudaModule) -> None:
    with pytest.raises(KernelError, match=r"no __device__ or __constant__ variable 'tabel'.*\n.*'counter', 'fixed'"):
        kernels.variable("tabel", "cpu")
    with pytest.raises(KernelError, match="'fixed'"):  # const: a GPU's compiler may have put it into the code
        kernels.variable("fixed", "cpu")
    table = kernels.variable("table", "cpu")
    with pytest.raises(LaunchError, match=r"`float table` was given float64 elements.*\n.*torch.float32"):
        table.set(torch.zeros(4, dtype=torch.float64))
    with pytest.raises(LaunchError, match=r"must have 16 bytes \(4 float32 elements\), got 12"):
        table.set([1, 2, 3])
    with pytest.raises(LaunchError, match=r"`Pair pair` was given int 3, and the type of its elements is not known"):
        kernels.variable("pair", "cpu").set(3)
    with pytest.raises(LaunchError, match=r"must have 8 bytes, got 4"):
        kernels.variable("pair", "cpu").set(b"1234")


@pytest.mark.gpu
def test_a_gpu_uses_what_python_sets(kernels: ow.CudaModule) -> None:
    kernels.variable("table").set([1, 2, 3, 4])
    kernels.variable("counter").set(100)
    assert run(kernels, "cuda").tolist() == [4, 5, 6, 7] * 2
    assert kernels.variable("counter").get().tolist() == [108]
    kernels.variable("table").set(torch.tensor([0.5, 0, 0, 0], device="cuda"))
    assert run(kernels, "cuda").tolist() == [3.5, 3, 3, 3] * 2
    assert kernels.variable("table").get().tolist() == [0.5, 0, 0, 0]
    with pytest.raises(LaunchError, match="got 12"):
        kernels.variable("table").set([1, 2, 3])
    with pytest.raises(KernelError, match="'tabel'"):
        kernels.variable("tabel")


@pytest.mark.compiler
def test_constants_with_addresses_are_no_variables() -> None:
    text = """
    __device__ const float one[2] = {1, 2};
    __device__ const float* const table[1] = {one};
    __constant__ int scale = 2;
    __global__ void k(float* y, int i) { y[0] = table[i][1] * scale; }
    __global__ void l(float* y, int i) { y[0] = table[i][0] * scale; }
    """
    kernels, y = ow.cuda_module(text), torch.zeros(1)
    for name, value in (("k", 4), ("l", 2), ("k", 4)):
        kernels[name][1, 1](y, 0)
        assert y.item() == value
    kernels.variable("scale", "cpu").set(5)
    kernels["l"][1, 1](y, 0)
    assert y.item() == 5
