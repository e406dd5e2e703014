"""What one compiler of CUDA kernels takes, the other takes: the simulator's g++, and NVRTC."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import kernelsim
import opwright as ow
from opwright.backends.cuda.module import CudaModule
from opwright.backends.cuda.nvrtc import available
from opwright.errors import CompileError, NotSimulatedError, SimulatorError
from opwright.results import Refused
from tests.sampled import quick

needs_nvrtc = pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")

# Headers, and a kernel's statement with a name of each: its result in out[0].
NAMES = {
    "no header": ("", "uint n = 3; int32_t m = 4; out[0] = INFINITY > FLT_MAX && M_PI > 3 ? n + m : 0;", 7.0),
    "versions": ("#include <cuda.h>\n#if CUDART_VERSION < 11000 || CUDA_VERSION < 11000\n#error too old\n#endif",
                 "out[0] = 1;", 1.0),
    "void_t": ("#include <type_traits>\ntemplate <class T> using Void = std::void_t<T>;",
               "out[0] = std::is_same<Void<int>, void>::value;", 1.0),
    "stdint.h": ("#include <stdint.h>", "uint8_t a = 255; int64_t b = INT64_MAX; out[0] = a + (b > INT32_MAX);", 256.0),
    "cstdint": ("#include <cstdint>", "std::uint16_t a = 65535; out[0] = a;", 65535.0),
    "float.h": ("#include <float.h>", "out[0] = -FLT_MAX < 0 && DBL_EPSILON > 0 ? FLT_EPSILON : 0;", 2.0**-23),
    "limits.h": ("#include <limits.h>", "out[0] = INT_MAX == 2147483647 && CHAR_BIT == 8 && UINT_MAX > 0;", 1.0),
    "math.h": ("#include <math.h>", "out[0] = isinf(INFINITY) && isnan(NAN) ? sqrtf(16) : 0;", 4.0),
    "cmath": ("#include <cmath>", "out[0] = std::sqrt(16.0f) + std::abs(-2.0f) + std::pow(2.0f, 3.0f);", 14.0),
    "limits": (
        "#include <limits>",
        "out[0] = std::numeric_limits<float>::lowest() < 0 && std::isinf(std::numeric_limits<float>::infinity())"
        " ? std::numeric_limits<int16_t>::max() : 0;",
        32767.0,
    ),
    "what limits say of a type": (
        "#include <limits>\ntemplate <class T> using L = std::numeric_limits<T>;",
        "static_assert(L<float>::is_iec559 && !L<int>::is_iec559 && L<int>::is_exact && !L<double>::is_exact, \"\");"
        " static_assert(L<float>::has_infinity && !L<unsigned>::has_quiet_NaN && !L<dim3>::is_integer, \"\");"
        " out[0] = L<float>::digits10 + L<int64_t>::digits10 + L<float>::radix + (L<float>::denorm_min() > 0);",
        6.0 + 18 + 2 + 1,
    ),
    "algorithm": ("#include <algorithm>\n",
                  "float a = 1, b = 2; std::swap(a, b); out[0] = std::max(a, 3.f) - std::min(b, a);", 2.0),
    "type_traits": (
        "#include <type_traits>",
        "out[0] = std::is_same<std::conditional_t<(sizeof(int) > 2), int, char>, int>::value"
        " + std::is_floating_point_v<float>;",
        2.0,
    ),
    "assert.h": ("#include <assert.h>", "assert(out != nullptr); out[0] = 1;", 1.0),
    "stdio.h": ("#include <stdio.h>", 'if (out == nullptr) printf("%d\\n", 3); out[0] = 1;', 1.0),
    "half types": ("", "__half h = __float2half(2.0f); __nv_bfloat16 b = __float2bfloat16(3.0f);"
                       " out[0] = __half2float(h) + __bfloat162float(b);", 5.0),
    "fp8": ("#include <cuda_fp8.h>", "out[0] = float(__nv_fp8_e4m3(999)) + float(__nv_fp8_e5m2(.3f));", 448.3125),
    "fp4": ("#include <cuda_fp4.h>", "float4 v = float4(__nv_fp4x4_e2m1(make_float4(-9, .3f, 2.5f, 1)));"
                                     " out[0] = v.x + v.y + v.z + v.w + float(__nv_fp4_e2m1(5.f));", 1.5),
    "fp6": ("#include <cuda_fp6.h>", "float2 v = float2(__nv_fp6x2_e3m2(make_float2(99, -.3f)));"
                                     " out[0] = v.x + v.y + float(__nv_fp6_e2m3(7.3f));", 35.1875),
    "runtime headers": ("#include <cuda_runtime.h>\n#include <cuda.h>\n#include <device_launch_parameters.h>",
                        "out[0] = blockDim.x;", 1.0),
    "tiles": (
        "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;",
        "cg::thread_block block = cg::this_thread_block();"
        " cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block); out[0] = warp.size() + block.size();",
        33.0,
    ),
    "any group": (
        "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;",
        "cg::thread_group block = cg::this_thread_block(); block.sync(); cg::thread_group tile ="
        " cg::tiled_partition(block, 4); out[0] = block.size() + tile.thread_rank();",
        1.0,
    ),
    "cub": (
        "#include <cub/block/block_reduce.cuh>\n__device__ constexpr int most(std::initializer_list<int> all)"
        " { return std::max(all); }",
        "using Reduce = cub::BlockReduce<float, 1>; __shared__ Reduce::TempStorage memory;"
        " out[0] = Reduce(memory).Sum(most({3, 5, 4}));",
        5.0,
    ),
    "all of cub": (
        "#include <cub/cub.cuh>",
        "using Reduce = cub::BlockReduce<float, 1>; using Scan = cub::BlockScan<int, 1>; __shared__ union {"
        " typename Reduce::TempStorage reduce; typename Scan::TempStorage scan; } memory; int before;"
        " Scan(memory.scan).ExclusiveScan(3, before, 2, cub::Sum()); __syncthreads();"
        " out[0] = Reduce(memory.reduce).Reduce(4.0f, cub::Max()) + before;",
        6.0,
    ),
    "cub without its name": (
        "#include <cub/cub.cuh>\n#include <cub/block/block_discontinuity.cuh>\nusing namespace cub;",
        "using Reduce = BlockReduce<float, 1>; __shared__ Reduce::TempStorage memory; Max most;"
        " const float a = Reduce(memory).Reduce(4.0f, Sum()); __syncthreads();"
        " out[0] = Reduce(memory).Reduce(a, most) + most(1, 2);",
        6.0,
    ),
    "another name for cub": (
        "#include <cub/util_type.cuh>\n#include <cub/block/block_reduce.cuh>\nnamespace c = cub;",
        "__shared__ c::BlockReduce<float, 1>::TempStorage memory;"
        " out[0] = c::BlockReduce<float, 1>(memory).Reduce(4.0f, c::Max());",
        4.0,
    ),
    "torch's warps": (
        "#include <ATen/cuda/DeviceUtils.cuh>\n__device__ const float two = 2.0f;",
        "static_assert(sizeof(WARP_BALLOT(1, 1u)) == 4, \"\"); out[0] = doLdg(&two) + (ACTIVE_MASK() & 1u)"
        " + WARP_SHFL_XOR(3.0f, 0, 32, 1u) + WARP_SHFL(2, 0, 32, 1) + WARP_BALLOT(1, 1u);",
        9.0,
    ),
    "complex": (
        "#include <cuComplex.h>",
        "cuDoubleComplex d = cuComplexFloatToDouble(cuCdivf(make_cuFloatComplex(4, 2), make_cuComplex(1, 1)));"
        " cuComplex c = cuCmulf(make_cuFloatComplex(1, 2), cuConjf(make_cuFloatComplex(3, 4)));"
        " out[0] = cuCreal(d) + 10 * cuCimag(d) + cuCrealf(c) + 100 * cuCimagf(c) + cuCabsf(make_cuFloatComplex(3, 4))"
        " + cuCreal(cuCadd(d, cuCsub(d, d))) + cuCrealf(cuCfmaf(c, c, c));",
        3 - 10 + 11 + 200 + 5 + 3 + (121 - 4 + 11),
    ),
    "vectors of CUDA 13": (
        "", "double4_16a a = make_double4_16a(1, 2, 3, 4); ulong4_32a b{1, 2, 3, 4};"
            " out[0] = a.w + b.y + alignof(double4_16a) + alignof(longlong4_32a);", 54.0),
    "names of the host": ("__device__ int on(cudaStream_t stream, cudaEvent_t) { return stream == nullptr; }",
                          "out[0] = on(0, 0);", 1.0),
    "a compiler of CUDA": ("", "out[0] = __CUDACC_VER_MAJOR__ >= 12 && __CUDACC_VER_MINOR__ >= 0;", 1.0),
    "linux": ("#ifndef __linux__\n#error an unsupported system\n#endif", "out[0] = CLOCKS_PER_SEC > 0;", 1.0),
    "clock": ("#include <time.h>", "clock_t begin = clock(); out[0] = clock() >= begin;", 1.0),
    "torch's names": (
        "#include <ATen/ATen.h>",
        "at::acc_type<c10::Half, true> a = c10::Half(3); out[0] = a * sizeof(at::opmath_type<at::BFloat16>);",
        12.0,
    ),
    "torch's complex numbers": (
        "#include <c10/util/complex.h>\nusing C = c10::complex<float>;\n#include <new>",
        "C a(1, 2), b = std::conj(a) * a; a += 2 * b - 3.0f; a /= C(0, 1); __shared__ C sum; new (&sum) C(1, 1);"
        " gpuAtomicAdd(&sum, a); out[0] = sum.real() + 10 * sum.imag_ + 100 * (b == C(5)) + sizeof(C);",
        41.0,
    ),
    "storage, tags, modf": (
        "#include <type_traits>\n#include <iterator>\n#include <cmath>\nusing Tag = std::forward_iterator_tag;",
        "using Bytes = std::aligned_storage<12, 4>::type; Tag tag; (void)tag; double whole; double part ="
        " std::modf(2.5, &whole);"
        " out[0] = sizeof(Bytes) + alignof(Bytes) + std::bool_constant<true>::value + whole + part;",
        19.5,
    ),
    "tuple": (
        "#include <tuple>\n__device__ std::tuple<int, float> pair() { return std::make_tuple(3, 0.5f); }",
        "int a; float b; std::tie(a, b) = pair(); out[0] = a + b + std::get<0>(pair());",
        6.5,
    ),
    "integers, bytes, arrays and pairs of std": (
        "#include <iostream>\n__device__ float first(std::array<float, 2> a) { return a[0] + a.size(); }",
        "std::uintptr_t p = 1; std::uint8_t b = 2; std::size_t s = 3; int a = 4, c; std::memcpy(&c, &a, sizeof(a));"
        " std::pair<int, float> d = std::make_pair(5, 0.5f); out[0] = p + b + s + c + d.second + first({6, 7});",
        18.5,
    ),
    "function objects and more traits": (
        "#include <functional>\ntemplate <class F> __device__ int apply(F f, int a, int b) { return f(a, b); }\n"
        "struct A {}; struct B : A {};",
        "static_assert(std::is_trivially_copyable<A>::value && std::is_base_of<A, B>::value && std::is_pointer_v<int*>"
        " && std::conjunction<std::is_class<A>, std::is_convertible<int, float>>::value, \"\");"
        " static_assert(!std::is_enum<A>::value && std::is_trivially_copy_assignable<A>::value, \"\");"
        " enum E : int { zero }; std::underlying_type_t<E> n = 1;"
        " out[0] = apply(std::plus<int>(), 3, 4) + std::multiplies<>()(2, 5) + std::less<int>()(1, 2) + n;",
        19.0,
    ),
    "wmma": (
        "#include <mma.h>\nusing namespace nvcuda;",
        "wmma::fragment<wmma::accumulator, 16, 16, 16, float> f; wmma::fill_fragment(f, 2.0f);"
        " out[0] = f.x[0] * f.num_elements;",
        16.0,
    ),
    "pipeline": ("#include <cuda_pipeline.h>", "__pipeline_commit(); __pipeline_wait_prior(0); out[0] = 1;", 1.0),
    "inline PTX": ("", 'unsigned v; asm("mov.u32 %0, %ntid.x;" : "=r"(v)); out[0] = v;', 1.0),
}  # fmt: skip


def module(name: str) -> CudaModule:
    includes, statement, _ = NAMES[name]
    return ow.cuda_module(f"{includes}\n__global__ void k(float* out) {{ {statement} }}\n")


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("name", quick(NAMES, every=4))
def test_the_simulator_takes_it(name: str) -> None:
    out = torch.zeros(1)
    with kernelsim.options(checked=False):
        module(name)["k"][1, 1](out)
    assert math.isclose(out.item(), NAMES[name][2])


@needs_nvrtc
@pytest.mark.parametrize("name", quick(NAMES, every=4))
def test_nvrtc_takes_it(name: str) -> None:
    assert [entry.name for entry in module(name).compile("sm_90").entries] == ["k"]


@pytest.fixture
def with_marks(tmp_path: Path) -> CudaModule:
    """A file and a header that begin with a byte order mark, as some editors write it."""
    (tmp_path / "marked.cuh").write_text("#pragma once\n#define TWO 2\n", encoding="utf-8-sig")
    file = tmp_path / "marked.cu"
    file.write_text('#include "marked.cuh"\n__global__ void k(float* x) { x[0] *= TWO; }\n', encoding="utf-8-sig")
    return ow.cuda_module(file)


@pytest.mark.slow
def test_byte_order_marks(with_marks: CudaModule) -> None:
    x = torch.ones(1)
    with_marks["k"][1, 1](x)
    assert x.item() == 2


@needs_nvrtc
def test_byte_order_marks_for_nvrtc(with_marks: CudaModule) -> None:
    assert [entry.name for entry in with_marks.compile("sm_90").entries] == ["k"]


SAME_NAME = """
namespace library { template <class T> __device__ T twice(T x) { return 2 * x; } }
using namespace library;
template <class T> __global__ void twice(T* x) { x[0] = library::twice(x[0]); }
"""


def test_an_instance_by_a_name_that_a_namespace_has_too() -> None:
    x = torch.ones(1)
    ow.cuda_module(SAME_NAME)["twice<float>"][1, 1](x)
    assert x.item() == 2


@needs_nvrtc
def test_nvrtc_knows_which_of_two_names_is_the_kernels() -> None:
    made = ow.cuda_module(SAME_NAME, instances=["twice<float>"])
    assert [entry.name for entry in made.compile("sm_90").entries] == ["twice<float>"]
    with pytest.raises(CompileError, match=r"twice<undefined>"):
        made.compile("sm_90", "twice<undefined>")


@needs_nvrtc
def test_what_neither_has_is_an_error_in_both() -> None:
    wrong = ow.cuda_module("__global__ void k(int128_t* x) { x[0] = M_TAU; }")
    with pytest.raises(CompileError, match="int128_t"):
        wrong.compile("sm_90")
    with pytest.raises(CompileError, match="int128_t"):
        wrong["k"][1, 1](torch.zeros(1))


@needs_nvrtc
def test_what_only_the_simulator_lacks_is_no_error_of_the_source() -> None:
    """A candidate failed for a method of CUB that the simulator did not have."""
    text = "__global__ void k(const int* x, int* out) { out[0] = __dp2a_lo(x[0], x[1], 0); }"
    x = torch.ones(2, dtype=torch.int32)
    with pytest.raises(NotSimulatedError, match=r"cannot compile k, which NVRTC compiles: .*__dp2a_lo"):
        ow.cuda_module(text)["k"][1, 1](x, x)
    with pytest.raises(CompileError, match="not declared"):
        ow.cuda_module(text.replace("x[1], 0", "y[1], 0"))["k"][1, 1](x, x)


def test_what_the_simulator_refuses_is_not_simulated() -> None:
    """A candidate failed for an instruction that the simulator does not have."""
    text = (
        """__global__ void k(int* x) { asm volatile("mma.sync.aligned.m16n8k16.row.col.f8f6f4 {%0};" : "+r"(x[0])); }"""
    )
    with pytest.raises(NotSimulatedError, match="inline PTX"):
        ow.cuda_module(text)["k"][1, 1](torch.zeros(1, dtype=torch.int32))


@needs_nvrtc
def test_an_error_that_crashes_nvrtc_is_reported_and_the_next_source_compiles() -> None:
    text = "template <int N> __global__ void k(int9_t* x) {}\n__global__ void plain(int* x) { x[0] = 1; }"
    wrong = ow.cuda_module(text)
    with pytest.raises(CompileError, match=r"<cuda source>\(1\): error"):
        wrong.compile("sm_90", "k<3>")  # NVRTC 13 ends with a segmentation fault
    assert ow.cuda_module("__global__ void k(int* x) { x[0] = 1; }").compile("sm_90").entries


@needs_nvrtc
def test_the_end_of_nvrtcs_process_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from opwright.backends.cuda import nvrtc_process

    child = tmp_path / "child.py"
    child.write_text("import os, sys\nsys.stdin.buffer.read(8)\nos.kill(os.getpid(), 11)\n")
    monkeypatch.setattr(nvrtc_process, "_current", [])
    monkeypatch.setattr(nvrtc_process.nvrtc_child, "__file__", str(child))
    with pytest.raises(CompileError, match=r"<cuda source>: NVRTC crashed \(SIGSEGV\)"):
        ow.cuda_module("__global__ void k(int* x) { x[0] = 123; }").compile("sm_90")


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize(("cpp", "dtype"), [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
def test_eight_bit_floats_round_as_torch_does(cpp: str, dtype: torch.dtype) -> None:
    text = f"""
    #include <cuda_fp8.h>
    __global__ void encode(const float* x, __nv_fp8_{cpp}* y, int n) {{
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) y[i] = __nv_fp8_{cpp}(x[i]);
    }}
    __global__ void decode(const __nv_fp8_{cpp}* x, float* y) {{ y[threadIdx.x] = float(x[threadIdx.x]); }}
    """
    kernels = ow.cuda_module(text)
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    values = torch.empty(256)
    kernels["decode"][1, 256](codes, values)
    assert torch.equal(values.nan_to_num(7), codes.float().nan_to_num(7))
    exact = codes.float()[codes.float().isfinite()].sort().values
    x = torch.cat([exact, (exact[1:] + exact[:-1]) / 2, torch.randn(4000) * 10])  # values, ties and others
    got = torch.empty(x.numel(), dtype=dtype)
    with kernelsim.options(checked=False):
        kernels["encode"][ow.cdiv(x.numel(), 256), 256](x, got, x.numel())
    assert torch.equal(got.view(torch.uint8), x.to(dtype).view(torch.uint8))


# The values of each type: of the nth code, without a sign.
SMALL = {
    "fp4_e2m1": [0, 0.5, 1, 1.5, 2, 3, 4, 6],
    "fp6_e2m3": [i / 8 for i in range(16)] + [2 + i / 4 for i in range(8)] + [4 + i / 2 for i in range(8)],
    "fp6_e3m2": [i / 16 for i in range(4)] + [(4 + i) * 2.0**e / 16 for e in range(7) for i in range(4)],
}


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("name", SMALL)
def test_smaller_floats_round_to_the_nearest_even_and_saturate(name: str) -> None:
    text = f"""
    #include <cuda_{name[:3]}.h>
    __global__ void k(const float* x, unsigned char* codes, float* values, int n) {{
      for (int i = threadIdx.x; i < n; i += blockDim.x) {{
        const __nv_{name} v(x[i]);
        codes[i] = v.__x;
        values[i] = float(v);
      }}
    }}
    """
    values = torch.tensor(SMALL[name])
    between = (values[1:] + values[:-1]) / 2  # a tie goes to the even code, anything else to the nearer one
    ties = torch.arange(len(between)) + torch.arange(len(between)) % 2
    wanted = torch.cat([torch.arange(len(values)), ties, torch.arange(len(between)), ties * 0 + len(values) - 1])
    beyond = torch.full_like(between, values[-1] * 3)
    x = torch.cat([values, between, between * (1 - 2.0**-20), beyond])
    x, wanted = torch.cat([x, -x]), torch.cat([wanted, wanted + len(values)])
    codes, back = torch.zeros(len(x), dtype=torch.uint8), torch.zeros(len(x))
    ow.cuda_module(text)["k"][1, 32](x, codes, back, len(x))
    assert torch.equal(codes.long(), wanted)
    assert torch.equal(back, torch.cat([values, -values])[wanted])


@pytest.mark.compiler
def test_assert_is_a_finding_on_the_simulator() -> None:
    kernels = ow.cuda_module("#include <assert.h>\n__global__ void k(float* x) { assert(x[0] > 0); x[0] = 2; }")
    with pytest.raises(SimulatorError, match=r"assertion failed: x\[0\] > 0"):
        kernels["k"][1, 1](torch.zeros(1))
    x = torch.ones(1)
    kernels["k"][1, 1](x)
    assert x.item() == 2
