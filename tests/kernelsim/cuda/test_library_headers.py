"""Headers of libraries, written as CuTe's and CUTLASS's are: what they declare for NVRTC, what of them is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import kernelsim
import opwright as ow
from kernelsim.cuda_sim.rewriting import refusals, rewrite
from kernelsim.text import library_headers
from kernelsim.text.library_headers import with_cutlass
from kernelsim.text.parsed_source import parsed
from kernelsim.text.source import CudaSource
from opwright.backends.cuda.nvrtc import available
from opwright.results import Refused

pytestmark = pytest.mark.compiler
needs_nvrtc = pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")

LIBRARY = """
#pragma once
#include <cccl/cuda/std/tuple>
#include <cuda/std/cassert>
#include <driver_types.h>
namespace library {
enum { FP_NAN =
#define FP_NAN 0
  FP_NAN };
template <class A, class B> struct Two { A a; B b; };
__forceinline__ __device__ float add(float a, float b) { return a + b; }
__forceinline__ __device__ void known(int& x) { asm("add.s32 %0, %0, 1;" : "+r"(x)); }
__forceinline__ __device__ void unknown(int& x) { asm("tcgen05.unknown %0;" : "+r"(x)); }
__device__ inline const char* name() { return "library"; }
struct Pool {
  __device__ int
  free(int x) { return x; }
};
void launch(int, cudaStream_t);
}
namespace cuda { namespace std {
template <class A, class B>
struct tuple_size<library::Two<A, B>> : integral_constant<size_t, 2> {};
template <size_t I, class A, class B>
struct tuple_element<I, library::Two<A, B>> : tuple_element<I, tuple<A, B>> {};
} }
namespace std {
#ifdef __CUDACC_RTC__
template <class... T>
struct tuple_size;
template <size_t I, class... T>
struct tuple_element;
#endif
template <class A, class B>
struct tuple_size<library::Two<A, B>> : cuda::std::tuple_size<library::Two<A, B>> {};
}
"""

SOURCE = """
#include <library.h>
using namespace library;
__global__ void add(int* out) {
  int x = int(cuda::std::tuple_size<const Two<int, float>>::value) + Pool().free(3);
  using Second = cuda::std::tuple_element<1, Two<int, float>>::type;
  static_assert(cuda::std::is_same<Second, float>::value, "");
  assert((name()[0] == 'l' && std::tuple_size<Two<int, int>>::value == 2));
  known(x);
  out[0] = x;
}
__global__ void refused(int* out) { unknown(out[0]); }
"""


@pytest.fixture
def include(tmp_path: Path) -> list[str]:
    (tmp_path / "library.h").write_text(LIBRARY)
    return ["-I", str(tmp_path)]


def test_what_a_header_declares_for_nvrtc(include):
    """Also a kernel whose name a namespace has that is used whole."""
    out = torch.zeros(1, dtype=torch.int32)
    kernelsim.cuda(SOURCE, flags=include)["add"][1, 1](out)
    assert out.item() == 6


@pytest.mark.parametrize("checked", [True, False])
def test_inline_ptx_of_a_header_is_refused_if_the_kernel_uses_it(include, checked):
    kernel = kernelsim.cuda(SOURCE, flags=include)["refused"]
    with (
        kernelsim.options(checked=checked),
        pytest.raises(kernelsim.RefusedError, match=r"library.h:13: inline PTX tcgen05.unknown: .*\n +__forceinline__"),
    ):
        kernel[1, 1](torch.zeros(1, dtype=torch.int32))


def test_an_error_in_a_header_is_found(include, tmp_path):
    text = LIBRARY.replace("return a + b;", "__shared__ float s[2]; s[int(a)] = b; return s[0];")
    (tmp_path / "library.h").write_text(text)
    source = "#include <library.h>\n__global__ void k(float* out) { out[0] = library::add(2, out[0]); }"
    with pytest.raises(kernelsim.FindingError, match=r"library.h:11: .*out-of-bounds"):
        kernelsim.cuda(source, flags=include)["k"][1, 1](torch.zeros(1))


def test_a_header_of_cutlass_that_nobody_has(monkeypatch):
    monkeypatch.setattr(library_headers, "cutlass_folder", lambda: None)
    with pytest.raises(
        kernelsim.RefusedError, match=r"cute/tensor.hpp>: no include folder has this header, .*nvidia-cutlass"
    ):
        kernelsim.cuda("#include <cute/tensor.hpp>\n__global__ void k(int* x) {}")["k"][1, 1](torch.zeros(1).int())


def test_the_folder_of_the_package_is_for_headers_that_no_other_folder_has(monkeypatch, tmp_path):
    ours, users = tmp_path / "package", tmp_path / "users"
    for folder in (ours, users):
        (folder / "cute").mkdir(parents=True)
        (folder / "cute" / "own.hpp").write_text("")
    (tmp_path / "beside.h").write_text("#include <cute/own.hpp>")
    monkeypatch.setattr(library_headers, "cutlass_folder", lambda: ours)

    def options(text, *given):
        return with_cutlass(CudaSource(text, tmp_path / "kernel.cu", given)).options

    added = ("-I", str(ours))
    assert options("#include <cute/own.hpp>") == options('#include "beside.h"') == added
    assert options("#include <cute/other.hpp>", "-I", str(users)) == ("-I", str(users), *added)
    assert options("#include <cute/own.hpp>", "-I", str(users)) == ("-I", str(users))
    assert options("#include <cuda_fp16.h>  // not <cute/own.hpp>") == ()


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("void* p = malloc(4);", "malloc"),
        ("free(p);", "free"),
        ("return free(p);", "free"),
        ("if (p) p = (int*)malloc(4);", "malloc"),
        ("pool.free(p); pool->malloc(4);", ""),
        ("__device__ void\n  free(int x);", ""),
    ],
)
def test_the_device_s_heap_and_functions_of_its_names(code, what):
    assert [refusal.what for refusal in refusals(parsed(code))] == ([what] if what else [])


@pytest.mark.parametrize(
    "text",
    [
        'const char* f() { return "text"; }',
        "char f() { return 'c'; }",
        "namespace std { template <class T> struct hash<T*> { int x; }; }",
        "template <class T> struct hash;",
    ],
)
def test_what_is_not_rewritten(text):
    assert rewrite(parsed(text), checked=True) == text


def test_a_return_and_declarations_of_std_are_rewritten():
    assert "returned_early" in rewrite(parsed("void f() { return /* it's over */ ; }"), checked=True)
    assert "hash" not in rewrite(parsed("namespace std { template <class T> struct hash; }"), checked=True)


@needs_nvrtc
def test_nvrtc_takes_the_same_header(include):
    source = SOURCE.replace("unknown(out[0])", "").replace("tcgen05.unknown", "")
    assert [e.name for e in ow.cuda_module(source, options=include).compile("sm_90", "add").entries]
