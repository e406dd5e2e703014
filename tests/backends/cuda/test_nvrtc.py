"""CUDA C++ compiled by NVRTC. No GPU is needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernelsim.text.source import CudaSource
from opwright.backends.build_tools import build_tools
from opwright.backends.cuda import nvrtc
from opwright.backends.gpu.device_code import DeviceCode
from opwright.errors import CompileError, KernelRefusedError
from opwright.results import Accepted

pytestmark = pytest.mark.nvrtc

SOURCE = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
using scalar_t = float;
struct Pair { int a; double b; };
extern "C" __global__ void many(const float* __restrict__ a, scalar_t s, half h, int n, Pair p, const half2* q,
                                __nv_bfloat16* z, unsigned long long k, bool c) { z[0] = __float2bfloat16(a[n] * s); }
namespace ns { __global__ void inside(float4* a, long long n) { if (n) a[0] = make_float4(1, 2, 3, 4); } }
template <class T, int N> __global__ void add(const T* a, T* b, size_t n) { for (int i = 0; i < N; ++i) b[i] = a[i]; }
"""


def compiled(text: str, *instances: str, arch: str = "sm_90", options: tuple[str, ...] = ()) -> DeviceCode:
    return nvrtc.compile_device_code(CudaSource(text, None, options), instances, arch, build_tools())


def types_of(code: DeviceCode, name: str) -> list[str]:
    entry = code.entry(name)
    assert entry is not None, [e.name for e in code.entries]
    return [p.type_name for p in entry.parameters]


def test_types_are_known_of_c_names_of_namespaces_and_of_instances():
    code = compiled(SOURCE, "add<float, 4>", "add<half, 2>")
    assert types_of(code, "many") == [
        "float const*", "float", "__half", "int", "Pair", "__half2 const*", "__nv_bfloat16*", "unsigned long long",
        "bool",
    ]  # fmt: skip
    assert types_of(code, "ns::inside") == ["float4*", "long long"]
    assert types_of(code, "add<float, 4>") == ["float const*", "float*", "unsigned long"]
    assert types_of(code, "add<half, 2>") == ["__half const*", "__half*", "unsigned long"]
    assert [p.size for p in code.entry("many").parameters] == [8, 4, 2, 4, 16, 8, 8, 8, 1]


def test_nothing_of_how_types_are_asked_for_is_left_in_the_binary():
    code = compiled(SOURCE)
    assert "opwright_signature" not in code.ptx.read_text()
    assert {e.name for e in code.entries} == {"many", "ns::inside"}


def test_resources_are_those_of_the_kernel():
    code = compiled("""
    __global__ void shared() { __shared__ float tile[300]; tile[threadIdx.x] = 1; __syncthreads(); tile[0] += tile[9]; }
    __global__ void plain(float* x) { x[0] = 1; }
    """)
    assert code.entry("shared").resources.static_shared == 1200
    assert code.entry("plain").resources.static_shared == 0
    assert 1 <= code.entry("plain").resources.registers < 40


def test_the_binary_is_for_the_architecture_that_was_named():
    text = "__global__ void k(int* x) { x[0] = __CUDA_ARCH__; }"
    assert ".target sm_80" in compiled(text, arch="sm_80").ptx.read_text()
    assert ".target sm_90a" in compiled(text, arch="sm_80", options=("-arch=sm_90a",)).ptx.read_text()


def test_options_reach_the_compiler():
    text = "__global__ void k(float* x) { x[0] = sinf(x[0]) * FACTOR; }"
    exact = compiled(text, options=("-DFACTOR=3.0f", "-O3"))
    fast = compiled(text, options=("-DFACTOR=3.0f", "--use_fast_math"))
    assert "sin.approx" not in exact.ptx.read_text()
    assert "sin.approx" in fast.ptx.read_text()


def test_cccl_headers_are_found():
    code = compiled(
        "#include <cuda/std/limits>\n__global__ void k(float* x) { *x = cuda::std::numeric_limits<float>::max(); }"
    )
    assert "0f7F7FFFFF" in code.ptx.read_text() or "2139095039" in code.ptx.read_text(), "the largest float is stored"


def test_a_compile_error_shows_file_line_source_and_caret(tmp_path: Path):
    text = "__global__ void f() {\n  int x = y;\n}\n" + "".join(f"__device__ void g{i}() {{ z; }}\n" for i in range(5))
    source = CudaSource(text, tmp_path / "broken.cu")
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_device_code(source, (), "sm_90", build_tools())
    message = str(caught.value)
    assert 'broken.cu(2): error: identifier "y" is undefined' in message
    assert "int x = y;\n" in message
    assert "^" in message
    assert re.search(r"\n… and \d+ more\n", message)
    assert message.count("error:") == 3


def test_a_template_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(CompileError, match=r"the kernel must be one of \['many', 'inside', 'add'\], got 'sub'"):
        compiled(SOURCE, "sub<float>")


def test_arguments_that_a_template_does_not_take_are_named():
    with pytest.raises(CompileError, match=r'instance add<nope, 3>.*error: identifier "nope" is undefined'):
        compiled(SOURCE, "add<nope, 3>")


def test_a_kernel_with_the_name_of_a_function_in_a_namespace_that_is_used_whole():
    """As with CuTe's ``add`` and ``copy`` after ``using namespace cute;``."""
    code = compiled("""
    namespace library {
    template <class T> __device__ T add(T a, T b) { return a + b; }
    __device__ int add(int a) { return a; }
    }
    using namespace library;
    extern "C" __global__ void add(const float* x, int n) {}
    """)
    assert types_of(code, "add") == ["float const*", "int"]


def test_an_architecture_that_nvrtc_does_not_know_is_refused():
    with pytest.raises(KernelRefusedError, match=r"arch must be one of .*sm_90.*, got 'sm_30'"):
        compiled(SOURCE, arch="sm_30")


def test_what_was_compiled_once_is_not_compiled_again(monkeypatch, tmp_path):
    (tmp_path / "factor.cuh").write_text("#define FACTOR 1\n")
    text = '#include "factor.cuh"\n__global__ void cached(int* x) { *x = FACTOR; }'
    source = CudaSource(text, tmp_path / "k.cu")
    runs = []
    run = nvrtc._run_nvrtc
    monkeypatch.setattr(nvrtc, "_run_nvrtc", lambda *a: runs.append(a) or run(*a))
    first = nvrtc.compile_device_code(source, (), "sm_90", build_tools())
    again = nvrtc.compile_device_code(source, (), "sm_90", build_tools())
    assert (len(runs), again) == (1, first)
    (tmp_path / "factor.cuh").write_text("#define FACTOR 2\n")
    assert nvrtc.compile_device_code(source, (), "sm_90", build_tools()).file != first.file
    assert len(runs) == 2


def test_doctor_says_which_headers_are_used():
    outcome = nvrtc.available()
    assert isinstance(outcome, Accepted)
    assert "headers in" in outcome.note
