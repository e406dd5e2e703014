"""Device memory that a simulated host function allocates, copies and frees itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from opwright.backends.cuda.host.part import HostPart
from opwright.backends.cuda.module import CudaModule
from opwright.backends.simulation import CudaSource
from opwright.errors import KernelError, LaunchError, NotSimulatedError

pytestmark = pytest.mark.compiler

TOTAL = """
__global__ void total(const float* x, float* out, int n) { for (int i = 0; i < n; ++i) atomicAdd(out, x[i]); }
"""
NORM = """
torch::Tensor f(torch::Tensor x) {
  float* sum = nullptr;
  float result;
  cudaMalloc(&sum, sizeof(float));
  cudaMemset(sum, 0, sizeof(float));
  total<<<1, 1>>>(x.data_ptr<float>(), sum, x.numel());
  cudaMemcpy(&result, sum, sizeof(float), cudaMemcpyDeviceToHost);
  cudaFree(sum);
  return x / result;
}
"""


def function(text: str) -> Callable[..., Any]:
    return HostPart(CudaModule(CudaSource(TOTAL + text))).function("f")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("&sum, sizeof", "(void**)&sum, sizeof"),
        ("float* sum", "using real = float;\n  real* sum"),
        ("float* sum = nullptr;\n  float result;", "float *sum = nullptr, result;"),
        ("cudaMalloc(&sum, sizeof(float))", "cudaMallocAsync(&sum, sizeof(float), at::cuda::getCurrentCUDAStream())"),
        ("cudaMemset(sum, 0, sizeof(float))", "const float none = 0.0f; cudaMemcpy(sum, &none, 4, cudaMemcpyDefault)"),
        ("cudaFree(sum)", "cudaFree(nullptr)"),
        ("cudaFree(sum)", "cudaFreeAsync(sum, 0)"),
        ("cudaMalloc(", "static float* kept = nullptr; cudaFree(kept); cudaMalloc(&kept, 4); cudaMalloc("),
    ],
)
def test_what_the_device_has_added_arrives(old: str, new: str) -> None:
    f, x = function(NORM.replace(old, new)), torch.rand(5)
    for _ in range(2):
        torch.testing.assert_close(f(x), x / x.sum())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("cudaFree(sum);", "cudaFree(sum); cudaFree(sum);", "the memory was freed before"),
        ("cudaFree(sum);", "cudaFree(sum); cudaMemset(sum, 0, 4);", "the memory was freed before"),
        (
            "cudaFree(sum);",
            "cudaFree(sum); total<<<1, 1>>>(x.data_ptr<float>(), sum, 1);",
            "the memory was freed before",
        ),
        ("cudaFree(sum);", "cudaFree(sum + 1);", "what cudaMalloc returned"),
        ("cudaFree(sum);", "cudaFree(x.data_ptr<float>());", "what cudaMalloc returned"),
        ("cudaMemset(sum, 0, sizeof(float))", "cudaMemset(sum, 0, 8)", "8 bytes are used, of 4"),
        ("sizeof(float), cudaMemcpy", "sizeof(double), cudaMemcpy", "8 bytes are used, of 4"),
        ("sizeof(float), cudaMemcpy", "2, cudaMemcpy", "a copy of 2 bytes of a variable of type float"),
        ("cudaMemcpyDeviceToHost", "cudaMemcpyHostToDevice", "a copy from device to host"),
    ],
)
def test_what_is_wrong_is_an_error(old: str, new: str, said: str) -> None:
    with pytest.raises((RuntimeError, ValueError, NotSimulatedError), match=said):
        function(NORM.replace(old, new))(torch.rand(5))


def test_memory_is_copied_on_the_device() -> None:
    f = function(
        "torch::Tensor f(torch::Tensor x) { auto y = torch::zeros_like(x);\n"
        "cudaMemcpy(y.data_ptr<float>() + 1, x.data_ptr<float>(), 8, cudaMemcpyDeviceToDevice); return y; }"
    )
    assert f(torch.tensor([1.0, 2.0, 3.0])).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "body",
    [
        "int n; cudaMalloc(&n, 4); return x;",
        "float** p; cudaMalloc(&p, 8); return x;",
        "float a[2]; cudaMemcpy(a, x.data_ptr<float>(), 8, cudaMemcpyDeviceToHost); return x;",
        "float h; cudaMemcpy(&h, x.data_ptr<float>(), 4, cudaMemcpyHostToHost); return x;",
    ],
)
def test_what_is_not_known_is_refused(body: str) -> None:
    with pytest.raises(NotSimulatedError):
        function(f"torch::Tensor f(torch::Tensor x) {{ {body} }}")(torch.rand(3))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('AT_ASSERTM(x.dim() == 1, "one dim"); return x + 1;', "2"),
        ('AT_ASSERTM(x.dim() == 2, "one dim"); return x;', "one dim"),
        ("auto t = std::make_tuple(1, 4); return x + std::get<1>(t);", "5"),
        ("auto t = std::make_tuple(1, 4); return x + std::get<2>(t);", "index"),
        ("at::TensorOptions o = x.options(); return torch::ones({1}, o) + x;", "2"),
        ("return torch::max_pool1d(x.view({1, 1, 1}), 1, 1).view({1});", "1"),
        ("return torch::avg_pool2d(x.view({1, 1, 1}), 1).view({1}) * 3;", "3"),
        ("return torch::layer_norm(x, {1}) + 4;", "4"),
        ("return torch::prod(x) + torch::argmax(x);", "1"),
    ],
)
def test_more_of_cpp(body: str, expected: str) -> None:
    try:
        found = str(int(function(f"torch::Tensor f(torch::Tensor x) {{ {body} }}")(torch.ones(1)).item()))
    except RuntimeError as error:
        found = str(error)
    assert expected in found


SHARED = """
template <typename T, int N>
__global__ void filled(T* y) { extern __shared__ char raw[]; T* s = (T*)raw; s[N] = 3; y[0] = s[N]; }
__global__ void other(float* y) {}
torch::Tensor f(torch::Tensor y, int bytes) {
  SET
  filled<float, 4><<<1, 1, bytes>>>(y.data_ptr<float>());
  return y;
}
"""
ATTRIBUTE, CARVEOUT = "cudaFuncAttributeMaxDynamicSharedMemorySize", "cudaFuncAttributePreferredSharedMemoryCarveout"
ONCE = "static bool set = false; if (!set) {"


@pytest.mark.parametrize(
    ("before", "count", "is_allowed"),
    [
        ("", 48 * 1024, True),
        ("", 48 * 1024 + 4, False),
        (f"cudaFuncSetAttribute(filled<float, 4>, {ATTRIBUTE}, bytes);", 64 * 1024, True),
        (f"cudaFuncSetAttribute((const void*)filled<float,4>, {ATTRIBUTE}, 65536);", 64 * 1024, True),
        (f"auto k = filled<float, 4>; cudaFuncSetAttribute(k, {ATTRIBUTE}, 65536);", 64 * 1024, True),
        (f"{ONCE} cudaFuncSetAttribute(filled<float, 4>, {ATTRIBUTE}, bytes); set = true; }}", 64 * 1024, True),
        (f"cudaFuncSetAttribute(filled<float, 4>, {ATTRIBUTE}, 50000);", 64 * 1024, False),
        (f"cudaFuncSetAttribute(filled<float, 5>, {ATTRIBUTE}, bytes);", 64 * 1024, False),
        (f"cudaFuncSetAttribute(other, {ATTRIBUTE}, bytes);", 64 * 1024, False),
        (f"cudaFuncSetAttribute(filled<float, 4>, {ATTRIBUTE}, 300000);", 64 * 1024, False),  # CUDA refuses it
        (f"cudaFuncSetAttribute(filled<float, 4>, {CARVEOUT}, 100);", 64 * 1024, False),
    ],
)  # fmt: skip
def test_much_shared_memory_has_to_be_allowed(before: str, count: int, is_allowed: bool) -> None:
    f = function(SHARED.replace("SET", before))
    if is_allowed:
        assert [f(torch.zeros(1), count).item() for _ in range(2)] == [3, 3]
        return
    with pytest.raises(LaunchError, match="bytes of dynamic shared memory, got"):
        f(torch.zeros(1), count)


@pytest.mark.parametrize(
    ("name", "size"),
    [("unsigned int", 4), ("size_t", 8), ("uint32_t", 4), ("unsigned long long", 8), ("unsigned short", 2)],
)
def test_sizes_of_types(name: str, size: int) -> None:
    assert function(f"int f(int x) {{ return sizeof({name}) * x; }}")(1) == size


def test_an_extension_may_have_no_kernel_and_a_module_must() -> None:
    source = CudaSource("torch::Tensor f(torch::Tensor x) { return x + 1; }")
    assert HostPart(CudaModule(source, needs_kernels=False)).function("f")(torch.ones(1)).item() == 2
    with pytest.raises(KernelError, match="must define a __global__ function"):
        CudaModule(source)
