"""Whole CUDA files: what they declare, and their device code without the host's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import opwright as ow
from kernelsim.text.parsed_source import parsed
from opwright.backends.cuda.nvrtc import available
from opwright.errors import CompileError, SimulatorError
from opwright.results import Accepted, Refused
from tests.kernelsim.loading import device_text

WHOLE = """
#include <algorithm>
#include <cstdint>
#include <cuda_fp16.h>
#include <iostream>
#include <torch/extension.h>
#include <vector>
#define TILE 32
#define DEVICE_INLINE __device__ __forceinline__
#define CHECK(call)                                    \\
  do {                                                 \\
    if ((call) != cudaSuccess) throw std::runtime_error("");   \\
  } while (0)
#define BINDING(name, T)                               \\
  torch::Tensor name##_binding(torch::Tensor x) {      \\
    CHECK(cudaGetLastError());                         \\
    name##_kernel<T><<<1, TILE>>>(x.data_ptr<T>(), x.numel()); \\
    return x;                                          \\
  }

struct Pack {
  float v[4];
  DEVICE_INLINE float& operator[](
      int i) { return v[i]; }
  DEVICE_INLINE const float& operator[](int i) const { return v[i]; }
};
static std::vector<torch::Tensor> cache;
DEVICE_INLINE float twice(float v) { return 2 * v; }
constexpr int rounded_up(int n) { return (n + TILE - 1) / TILE * TILE; }
int cdiv(int a, int b) { return (a + b - 1) / b; }

template <typename T>
__global__ void double_kernel(T* x, int n) {
  static_assert(rounded_up(33) == 64, "");
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = twice(x[i]);
}
__global__ void __launch_bounds__(TILE) pack_kernel(Pack* x, int64_t n) {
  for (int i = 0; i < 4; i++) x[threadIdx.x][i] = std::max(x[threadIdx.x][i], 0.0f);
}

template <typename T>
void launch(T* x, int n) { double_kernel<T><<<cdiv(n, TILE), TILE>>>(x, n); }
torch::Tensor forward(torch::Tensor x) {
  launch(x.data_ptr<float>(), x.numel());
  return x;
}
BINDING(double, float)
BINDING(double, double)
int main() { std::cout << "done" << std::endl; }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &forward);
}
TORCH_LIBRARY(demo, m) { m.def("forward(Tensor x) -> Tensor"); }
"""


def test_host_code_is_left_out_and_every_line_keeps_its_place() -> None:
    text = device_text(WHOLE)
    assert len(text) == len(WHOLE)
    assert [len(line) for line in text.split("\n")] == [len(line) for line in WHOLE.split("\n")]
    code = parsed(text).code
    gone = (
        "torch",
        "std::vector",
        "<<<",
        "PYBIND11_MODULE",
        "TORCH_LIBRARY",
        "cudaGetLastError",
        "main",
        "BINDING",
        "cdiv",
    )
    assert [word for word in gone if word in code] == []
    kept = ("TILE 32", "operator[]", "twice(float v)", "rounded_up(int n)", "double_kernel", "pack_kernel", "std::max")
    assert [word for word in kept if word not in code] == []


DEVICE_ONLY = """
#define HALF_OF(x) ((x) / 2)
// PYBIND11_MODULE(name, m) {}
__device__ int shift(int a, int b) { return a << b; }
float unannotated(float v) { return v; }
__global__ void k(float* x) { const char* text = "k<<<1, 2>>>(torch::Tensor)"; x[0] = unannotated(text != nullptr); }
"""


def test_device_code_that_looks_like_host_code_stays() -> None:
    assert device_text(DEVICE_ONLY) == DEVICE_ONLY


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("__device__ int counter;", ("counter",)),
        ("static __device__ float a[4] = {0}, *b = nullptr;", ("a", "b")),
        ("__device__ __align__(16) float lanes[4];", ("lanes",)),
        ("namespace n { __managed__ int inner; }", ("inner",)),
        ("__device__ const int size = 4; __constant__ float weights[3];", ()),
        ("__device__ static constexpr int size = 4;", ()),
        ("struct P { float v[4];\n  __device__ float& operator[](\n      int i) { return v[i]; } };", ()),
        ("__device__ float f(\n    float x);", ()),
        ("template <class T>\n__device__ inline T\nsum(T a,\n    T b) { T c = a; return c + b; }", ()),
        ("__global__ void k() { __shared__ int s[4]; int counter = 0; }", ()),
    ],
)
def test_device_variables(text: str, variables: tuple[str, ...]) -> None:
    assert tuple(v.name for v in parsed(text).variables.values() if v.is_writable) == variables


@pytest.mark.parametrize(
    ("text", "kernels"),
    [
        ("__global__ void a() {}\nvoid b() {}\n", ("a",)),
        ("template <int N> __global__ void __launch_bounds__(N, 2) a(float* x);", ("a",)),
        ("__global__ __launch_bounds__(sizeof(int) * 32) void a() {}", ("a",)),
        ('extern "C" __global__ void a(int*) {}\n__global__ void a(float*) {}', ("a",)),
        ("namespace n { static __global__ void\na(int x) {} }", ("a",)),
        ("#define MAKE(name) __global__ void name(int* x) {}\n", ("name",)),
        ("// __global__ void a() {}\n", ()),
    ],
)
def test_kernels(text: str, kernels: tuple[str, ...]) -> None:
    assert parsed(text).kernels == kernels


@pytest.mark.compiler
def test_a_whole_file_runs_on_the_simulator(tmp_path: Path) -> None:
    (tmp_path / "extension.cu").write_text(WHOLE)
    module = ow.cuda_module(tmp_path / "extension.cu")
    x = torch.arange(40.0)
    module["double_kernel<float>"][2, 32](x, 40)
    assert torch.equal(x, 2 * torch.arange(40.0))
    y = torch.tensor([[-1.0, 2.0, -3.0, 4.0]])
    module["pack_kernel"][1, 1](y, 1)
    assert y.tolist() == [[0.0, 2.0, 0.0, 4.0]]
    with pytest.raises(SimulatorError, match=r"extension.cu:36: out-of-bounds"):
        module["double_kernel<float>"][2, 32](x[:33], 40)


@pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")
def test_a_whole_file_compiles_for_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "extension.cu").write_text(WHOLE)
    module = ow.cuda_module(tmp_path / "extension.cu", instances=["double_kernel<float>"])
    assert sorted(entry.name for entry in module.compile("sm_90").entries) == ["double_kernel<float>", "pack_kernel"]


def kept(text: str, kernel: str) -> str:
    return " ".join(device_text(text, [kernel]).split())


def test_only_what_a_kernel_needs_is_kept() -> None:
    text = """
#include <torch/extension.h>
#include <thrust/tuple.h>
#include <cub/cub.cuh>
template <typename T, int dim, template <typename U> class Traits = at::DefaultPtrTraits, typename index_t = long>
static at::Tensor accessor(const at::Tensor& t) { return t; }
template <typename T> struct Pair {
  T a, b;
  void print() { std::cout << a; }
  __device__ T sum() const { return a + b; }
};
struct Domain { std::vector<double> x; };
static cudaArray *array = NULL;
cublasHandle_t handle;
__device__ float once(float v) { return v; }
__device__ float unused(cudaTextureObject_t t) { return tex2D<float>(t, 0, 0); }
#define TWICE(v) (once(v) * 2)
__global__ void k(float* array) { array[0] = TWICE(Pair<float>{1, 2}.sum()); }
__global__ void sums(float* x) { typedef cub::BlockReduce<float, 32> Reduce; }
int main() { k<<<1, 1>>>(nullptr); for (int i = 0; i < 3; i++) { std::cout << i; } }
"""
    left = kept(text, "k")
    for name in ("struct Pair", "once(float v)", "__global__ void k", "T sum()"):
        assert name in left, name
    for name in ("thrust", "cub", "accessor", "Domain", "cudaArray", "handle", "unused", "sums", "print", "main"):
        assert name not in left, name
    other = kept(text, "sums")
    assert "#include <cub/cub.cuh>" in other
    assert "thrust" not in other


# Without a word that only host code has: declarations, functions and members that no kernel names.
PLAIN_HOST_CODE = """
extern "C" void launch(uchar4* to, const float* from, int n);
template <class T> int chosen(const T& kernels, int n);
int verbose = 1;
typedef int& (Domain::* Member)(Index) const;
class Domain { double* x; void allocate(int n); };
template <class T> inline void release(T*& p) { delete p; p = nullptr; }
using Index = int;
class Seed {
 public:
  Seed() : at(0) {}
  explicit Seed(int first);
  __device__ int next() const { return at + 1; }
 private:
  int at; void reset() { at = 0; } };
__constant__ float table[2];
__device__ float declared(float x);
__device__ float declared(float x) { return 2 * x; }
__global__ void k(float* x, Seed seed, Index n) { x[0] = declared(seed.next()) + table[0] + n; }
"""


def test_host_code_that_no_kernel_names_is_left_out() -> None:
    left = kept(PLAIN_HOST_CODE, "k")
    for name in ("launch", "chosen", "verbose", "Domain", "release", "Seed()", "explicit", "reset"):
        assert name not in left, name
    for name in (
        "public:",
        "private:",
        "int at;",
        "next() const",
        "table[2]",
        "float declared(float x);",
        "Index = int",
    ):
        assert name in left, name
    assert left.count("{") == left.count("}")


@pytest.mark.compiler
def test_both_compilers_take_what_is_left() -> None:
    module = ow.cuda_module(PLAIN_HOST_CODE)
    if isinstance(available(), Accepted):
        assert [entry.name for entry in module.compile("sm_90").entries] == ["k"]
    x = torch.zeros(1)
    module.variable("table", "cpu").set([0.5, 0.0])
    module["k"][1, 1](x, np.array([(4,)], dtype=[("at", "i4")])[0], 3)
    assert x.item() == 2 * 5 + 0.5 + 3


@pytest.mark.compiler
def test_a_function_without_device_that_a_kernel_calls_is_an_error_for_a_gpu() -> None:
    text = "float helper(float x) { return x; }\n__global__ void k(float* x) { x[0] = helper(x[0]); }\n"
    assert device_text(text) == text
    if isinstance(available(), Accepted):
        with pytest.raises(CompileError, match=r"\(1\): error: A function without execution space annotations"):
            ow.cuda_module(text).compile("sm_90")


OF_TRAITS = """
#include <torch/extension.h>
template <int N_, typename T_> struct Traits {
  static constexpr int N = N_;
  using T = T_;
};
struct Unused { int x; };
template <typename Traits> __global__ void fill_kernel(typename Traits::T* x) { x[threadIdx.x] = Traits::N; }
void launch(torch::Tensor x) { fill_kernel<Traits<3, float>><<<1, 4>>>(x.data_ptr<float>()); }
"""


@pytest.mark.compiler
def test_types_that_only_an_instance_of_a_template_names_stay() -> None:
    x = torch.zeros(4)
    ow.cuda_module(OF_TRAITS)["fill_kernel<Traits<3, float>>"][1, 4](x)
    assert torch.equal(x, torch.full((4,), 3.0))
    assert "Unused" not in device_text(OF_TRAITS, ["fill_kernel<Traits<3, float>>"])


@pytest.mark.compiler
@pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")
def test_nvrtc_keeps_them_as_well() -> None:
    assert ow.cuda_module(OF_TRAITS).compile("sm_90", "fill_kernel<Traits<3, float>>").entries


BRANCHES = """
#include <vector>
#if defined(__CUDACC__) || defined(__HIPCC__)
#define FOR_BOTH __host__ __device__
#define FOR_BOTH_INLINE FOR_BOTH __forceinline__
#else
#define FOR_BOTH
#define FOR_BOTH_INLINE inline
#endif
template <typename T, typename R = T>
FOR_BOTH_INLINE R twice(T v) { return R(v) + R(v); }
FOR_BOTH_INLINE float row(std::vector<float>& v, int i) { return v[i]; }
FOR_BOTH_INLINE float row(const float* v, int i) { return v[i]; }
__global__ void k(const float* x, float* out) { out[0] = twice<float>(row(x, 1)); }
void host(std::vector<float>& v) { k<<<1, 1>>>(v.data(), v.data()); }
"""


def test_a_macro_of_several_branches_is_the_devices_if_one_of_them_is() -> None:
    text = device_text(BRANCHES, ["k"])
    assert "R twice(T v)" in text
    assert "row(const float* v" in text
    assert "std::vector" not in text


@pytest.mark.compiler
def test_such_a_file_runs_on_the_simulator() -> None:
    out = torch.zeros(1)
    ow.cuda_module(BRANCHES)["k"][1, 1](torch.tensor([1.0, 2.0]), out)
    assert out.item() == 4
