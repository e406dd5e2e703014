"""CUDA C++ for a CPU: rewriting, refusing, options, compiling and caching."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import kernelsim
from kernelsim.cuda_sim import compilation
from kernelsim.cuda_sim import kernel as simulator
from kernelsim.cuda_sim.refusing import lacking
from kernelsim.cuda_sim.rewriting import refusals, rewrite
from kernelsim.errors import CompileError, KernelError, RefusedError
from kernelsim.own_host import OwnHost, own_host
from kernelsim.text.parsed_source import parsed
from kernelsim.text.source import CudaSource
from tests.kernelsim.loading import loaded
from tests.sampled import quick

FILL = """\
#ifndef VALUE
#define VALUE 1
#endif
__global__ void fill(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = VALUE;
}
"""


def compiled(
    text: str, expression: str, *options: str, path: Path | None = None, checked: bool = False
) -> simulator.SimulatedKernel:
    source = CudaSource(textwrap.dedent(text), path, options)
    return loaded(compilation.compile_kernel(source, expression, own_host(), checked=checked))


def filled(text: str, *options: str, path: Path | None = None, expression: str = "fill") -> float:
    x = torch.zeros(5)
    compiled(text, expression, *options, path=path).launch((1, 1, 1), (8, 1, 1), 0, [x, 5])
    assert x.unique().numel() == 1
    return x[0].item()


# --- whether it can be had ---


def test_it_needs_a_compiler_and_linux() -> None:
    compiler = own_host().compiler
    assert lacking(None, "Linux x86_64") is not None
    assert lacking(compiler, "Darwin arm64") is not None
    without = OwnHost(own_host().root)
    without.compiler = None
    with pytest.raises(RefusedError, match="no C\\+\\+ compiler"):
        compilation.compile_kernel(CudaSource(FILL), "fill", without, checked=False)


@pytest.mark.compiler
def test_it_is_there_with_a_compiler() -> None:
    assert lacking(own_host().compiler, own_host().system) is None


# --- rewriting ---


@pytest.mark.parametrize(
    ("cuda", "cpp"),
    [
        (
            "void k() { extern __shared__ float s[]; }",
            "void k() { auto& s = kernelsim::dynamic_shared<float[]>(); }",
        ),
        (
            "void k() { extern __shared__ __align__(16) unsigned char s[][4]; }",
            "void k() { auto& s = kernelsim::dynamic_shared<unsigned char[][4]>(); }",
        ),
        ("namespace a { void k() { __shared__ static int x; } }", "namespace a { void k() { __shared__ int x; } }"),
        ("__noinline__ int f();", "__attribute__((noinline, flatten)) int f();"),
        ("__shared__ alignas(16) char s[4];", "__shared__ __attribute__((aligned(16))) char s[4];"),
        ("static inline __global__ void k();", "static __global__ void k();"),
        ("cute::Int<size<1>(t)> a;", "cute::Int<int(size<1>(t))> a;"),
        (
            "using namespace cute; Stride<_1, Int<(1 << N) * size<0>(get<(2 > 1)>(t))>>{};",
            "using namespace cute; Stride<_1, Int<int((1 << N) * size<0>(get<(2 > 1)>(t)))>>{};",
        ),
        ("template <int N> void f(cute::Int<N>);", None),
        ("cute::Int<int(size(t))> a;", None),
        ("template <class T> struct Int; Int<decltype(f())> a;", None),
        ("cute::Shape<> b; bool c = Int<f(), 2;", None),
        ("CUTE_DEVICE static inline int f();", "CUTE_DEVICE static int f();"),
        ("inline static CUTLASS_HOST_DEVICE int f();", "static CUTLASS_HOST_DEVICE int f();"),
        ("CUTE_DEVICE int f();\ninline int g();", None),
        ('// extern __shared__ float s[];\nauto t = "__noinline__";', None),
    ],
)
def test_what_macros_cannot_do_is_rewritten(cuda: str, cpp: str | None) -> None:
    assert rewrite(parsed(cuda), checked=False) == (cuda if cpp is None else cpp)


def test_rewriting_keeps_the_lines() -> None:
    text = "extern __shared__\n  float s[];\nvoid k() {\n  extern\n __shared__ int t[];\n  return;\n}\nint last;"
    for checked in (False, True):
        new = rewrite(parsed(text), checked=checked)
        assert new.split("\n").index("int last;") == 7
        assert ("returned_early" in new.split("\n")[5]) is checked
    assert '__asm__("kernelsim_dynamic_shared");' in new.split("\n")[0]


# --- refusing ---


@pytest.mark.parametrize(
    ("line", "what", "why"),
    [
        ('asm volatile("bar.red.popc.u32 %0, 1, p;" ::: "memory");', "inline PTX bar.red.popc.u32", "reduce a value"),
        ("child<<<1, 32>>>(x);", "<<<", "dynamic parallelism"),
        ("wmma::bmma_sync(d, a, b, c);", "wmma::bmma_sync", "tensor-core"),
        ("__mbarrier_init(&bar, 1);", "__mbarrier_init", "asynchronous copies"),
        ("float v = tex2D<float>(t, x, y);", "tex2D<", "textures"),
        ("int* p = new int[4];", "new i", "heap"),
        ("bnb_cub::BlockDiscontinuity<int, 32> d;", "bnb_cub::BlockDiscontinuity", "in part"),
        ("int* p = (int*)malloc(4);", "malloc", "heap"),
        ("cudaDeviceSynchronize();", "cudaDeviceSynchronize", "host code"),
    ],
)
def test_what_cannot_be_simulated(line: str, what: str, why: str) -> None:
    (refusal,) = {(r.line, r.what): r for r in refusals(parsed(f"__global__ void k() {{\n  {line}\n}}"))}.values()
    assert refusal.line == 2
    assert refusal.what == what
    assert why in refusal.why


@pytest.mark.parametrize(
    "line",
    [
        "struct A { A(const A&) = delete; };", "int renew = 1; asmx(renew);", "int x = a << b;", "f<g<h<1>>>();",
        "float new_h = 1, deleted_h = new_h;", "::new (at) T(1); new (at) T;",
    ],
)  # fmt: skip
def test_what_only_looks_like_it(line: str) -> None:
    assert refusals(parsed(line)) == []


@pytest.mark.slow
@pytest.mark.compiler
def test_a_refusal_reads_well() -> None:
    text = '__global__ void k(int* x) {\n  asm("tcgen05.fence;");  // here\n}\n'
    with pytest.raises(RefusedError) as caught:
        compiled(text, "k")
    assert str(caught.value).startswith("<cuda source>:2: inline PTX tcgen05.fence: this tensor-core operation is not")
    assert '\n    asm("tcgen05.fence;");  // here\n  → ' in str(caught.value)


@pytest.mark.compiler
@pytest.mark.slow  # compiles each branch
def test_refused_headers_and_dead_branches() -> None:
    with pytest.raises(RefusedError, match=r"<cuda source>:2: #include <cuda/std/barrier>: this part of"):
        compiled("// first\n#include <cuda/std/barrier>\n" + FILL, "fill")
    refused = '#include <cuda/std/barrier>\n__device__ void f() { asm("tcgen05;"); }\n'
    dead = f"#ifndef __KERNELSIM__\n{refused}#endif\n{FILL}"
    assert filled(dead) == 1
    for_hopper = '#if __CUDA_ARCH__ >= 900\n__device__ void f() { asm("tcgen05;"); }\n#endif\n' + FILL
    assert filled(for_hopper, "-arch=sm_80") == 1
    with pytest.raises(RefusedError, match=r"<cuda source>:2: inline PTX tcgen05"):
        filled(for_hopper, "--gpu-architecture=sm_90a")


INSTANCES = """
template <class T> __global__ void of_any(T* x, T value) { x[threadIdx.x] = value; }
#define MAKE(T) \\
  template __global__ void of_any<T>(T * x, T value)
MAKE(float);
MAKE(int);
"""


@pytest.mark.compiler
def test_explicit_instances_that_a_macro_makes_are_no_error() -> None:
    x = torch.zeros(4)
    kernelsim.cuda(INSTANCES)["of_any<float>"][1, 4](x, 2.5)
    assert x.tolist() == [2.5] * 4


# --- options ---


@pytest.mark.compiler
@pytest.mark.slow  # compiles with each option
def test_options_are_honoured(tmp_path: Path) -> None:
    assert filled(FILL) == 1
    assert filled(FILL, "-DVALUE=3") == 3
    assert filled(FILL, "-D", "VALUE=__CUDA_ARCH__", "-arch=sm_86") == 860
    x, y, a = torch.randn(1000), torch.randn(1000), 0.1
    text = "__global__ void axpy(float* x, const float* y, float a) { int i = threadIdx.x; x[i] = a * x[i] + y[i]; }"
    exact = (torch.tensor(a).double() * x.double() + y.double()).float()
    for option, want in (("--fmad=true", exact), ("--fmad=false", a * x + y)):
        got = x.clone()
        compiled(text, "axpy", option).launch((1, 1, 1), (1000, 1, 1), 0, [got, y, a])
        assert torch.equal(got, want)
    assert not torch.equal(exact, a * x + y)


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("options", "has"), quick([((), 1), (("-arch=sm_90a",), 1), (("-arch=sm_90",), 2), (("-arch=sm_80",), 2)], 0, 2)
)
def test_what_only_one_gpu_has(options: tuple[str, ...], has: int) -> None:
    """CUTLASS asks for it before wgmma."""
    asked = "#ifdef __CUDA_ARCH_FEAT_SM90_ALL\n#define VALUE 1\n#else\n#define VALUE 2\n#endif\n"
    assert filled(asked + FILL, *options) == has


@pytest.mark.compiler
def test_own_headers_are_found_rewritten_and_part_of_the_key(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "value.cuh").write_text('#include "more.cuh"\n#define VALUE more()\n')
    (tmp_path / "sub" / "more.cuh").write_text("__noinline__ __device__ float more() { return 4; }\n")
    path = tmp_path / "fill.cu"
    path.write_text('#include "sub/value.cuh"\n' + FILL)
    assert filled(path.read_text(), path=path) == 4
    (tmp_path / "sub" / "more.cuh").write_text("__device__ float more() { return 5; }\n")
    assert filled(path.read_text(), path=path) == 5
    assert filled("#include <more.cuh>\n#define VALUE more()\n" + FILL, f"-I{tmp_path / 'sub'}") == 5


@pytest.mark.compiler
def test_a_header_beside_its_includer_may_have_the_name_of_one_of_cuda_s(tmp_path: Path) -> None:
    """As ``"mma.h"`` in cutlass/arch. Between angles it is CUDA's."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "value.cuh").write_text('#include "mma.h"\n')
    (tmp_path / "sub" / "mma.h").write_text("#define VALUE 7\n")
    path = tmp_path / "fill.cu"
    path.write_text('#include "sub/value.cuh"\n' + FILL)
    assert filled(path.read_text(), path=path) == 7
    (tmp_path / "sub" / "value.cuh").write_text("#include <mma.h>\nusing nvcuda::wmma::row_major;\n")
    assert filled(path.read_text(), path=path) == 1


@pytest.mark.compiler
def test_an_include_in_a_comment_is_no_header(tmp_path: Path) -> None:
    (tmp_path / "value.cuh").write_text("#define VALUE 6\n")
    path = tmp_path / "fill.cu"
    path.write_text('/*\n#include "value.cuh"\n*/\n' + FILL)
    assert filled(path.read_text(), path=path) == 1


@pytest.mark.compiler
def test_a_defect_in_a_header_is_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "store.cuh").write_text(
        "// comment\ntemplate <class T>\n__device__ void store(T* x, int i) {\n  x[i] = 1;\n}\n"
    )
    path = tmp_path / "main.cu"
    path.write_text('#include "store.cuh"\n__global__ void k(float* x) { store(x, threadIdx.x); }\n')
    with pytest.raises(KernelError) as caught:
        compiled(path.read_text(), "k", path=path, checked=True).launch((1, 1, 1), (9, 1, 1), 0, [torch.zeros(8)])
    assert "store.cuh:4: out-of-bounds" in str(caught.value)


# --- errors ---


@pytest.mark.compiler
def test_a_compile_error_has_line_and_caret() -> None:
    with pytest.raises(CompileError) as caught:
        compiled("\n__global__ void k(float* x) {\n  x[0] = undefined_thing;\n}\n", "k")
    message = str(caught.value)
    assert "<cuda source>:3:10: error:" in message
    assert "x[0] = undefined_thing;" in message
    assert "|          ^" in message
    assert str(Path.home()) not in message


@pytest.mark.compiler
def test_an_unknown_intrinsic_or_kernel_is_named() -> None:
    with pytest.raises(CompileError, match="the simulator does not know __vadd4"):
        compiled("__global__ void k(unsigned* x) { x[0] = __vadd4(x[1], x[2]); }", "k")
    with pytest.raises(KernelError, match=r"the kernel must be one of \['fill'\], got 'fil'"):
        compiled(FILL, "fil")


# --- the cache ---


@pytest.mark.slow  # two processes
@pytest.mark.compiler
def test_the_second_time_compiles_nothing(tmp_path: Path) -> None:
    messages: list[str] = []
    for _ in range(2):  # two caches of one folder: as two processes have
        tools = OwnHost(tmp_path, messages.append)
        built = compilation.compile_kernel(CudaSource(FILL), "fill", tools, checked=True)
        loaded(built).launch((1, 1, 1), (4, 1, 1), 0, [torch.zeros(4), 4])
    assert len(messages) == 2  # the runtime and the kernel, both the first time
    compilation.compile_kernel(CudaSource(FILL), "fill", tools, checked=False)
    compilation.compile_kernel(CudaSource(FILL, options=("-DVALUE=2",)), "fill", tools, checked=True)
    assert len(messages) == 4


@pytest.mark.compiler
def test_two_kernels_of_one_name_are_two() -> None:
    one = (
        "__global__ void k(int* x) { __shared__ int s[2]; s[threadIdx.x] = 1; __syncthreads(); x[threadIdx.x] = s[0]; }"
    )
    first, second = compiled(one, "k"), compiled(one.replace("= 1;", "= 2;"), "k")
    for kernel, want in ((first, 1), (second, 2), (first, 1)):
        x = torch.zeros(2, dtype=torch.int32)
        kernel.launch((1, 1, 1), (2, 1, 1), 0, [x])
        assert x.tolist() == [want, want]


@pytest.mark.compiler
def test_a_function_may_be_inline_in_two_ways() -> None:  # as nvcc has it
    assert filled("static inline __device__ __forceinline__ int one() { return 1; }\n" + FILL) == 1


HALVES = """
#include <cuda_fp16.h>
__global__ void reversed(const half* x, half* y) {
  __shared__ half tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[63 - threadIdx.x];
}"""


@pytest.mark.slow  # the simulator's runtime is compiled once more
def test_a_compiler_that_is_hardened_by_default_runs_shared_arrays(tmp_path: Path, run_python: Any) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\nexec g++ -D_FORTIFY_SOURCE=3 -fstack-protector-strong -D_GLIBCXX_ASSERTIONS "$@"\n')
    compiler.chmod(0o755)
    done = run_python(
        f"import torch, kernelsim\nx, y = torch.arange(64.0).half(), torch.zeros(64).half()\n"
        f"kernelsim.cuda({HALVES!r})['reversed'][1, 64](x, y)\nprint(torch.equal(y, x.flip(0)))\n",
        env={"CXX": str(compiler), "KERNELSIM_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert done.stdout.split()[-1] == "True"
