"""What a kernel may read: each finding beside right kernels that look alike."""

from __future__ import annotations

import functools
import textwrap
from typing import Any

import pytest
import torch

from kernelsim.cuda_sim import compilation
from kernelsim.cuda_sim import kernel as simulator
from kernelsim.errors import FindingError
from kernelsim.own_host import own_host
from kernelsim.text.source import CudaSource
from tests.kernelsim.loading import loaded
from tests.sampled import quick

pytestmark = pytest.mark.compiler


@functools.cache
def compiled(text: str, name: str, checked: bool = True, options: tuple[str, ...] = ()) -> simulator.SimulatedKernel:
    source = CudaSource(textwrap.dedent(text), None, options)
    return loaded(compilation.compile_kernel(source, name, own_host(), checked=checked))


def findings(text: str, name: str, arguments: list[Any], *, block: int = 64, **options: Any) -> list[tuple[str, int]]:
    """The kind and the line of each finding."""
    try:
        compiled(text, name, options.pop("checked", True)).launch((1, 1, 1), (block, 1, 1), 0, arguments, **options)
    except FindingError as error:
        return [(found.kind, found.line) for found in error.findings]
    return []


# --- variables in shared memory whose types have constructors ---

REVERSED = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
struct Counted {
  float v;
  __device__ Counted() {}
  __device__ Counted(float v) : v(v) {}
};
struct Nested { Counted a; half b; };
__device__ float number(float v) { return v; }
__device__ float number(half v) { return __half2float(v); }
__device__ float number(half2 v) { return __half2float(v.y); }
__device__ float number(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ float number(Counted v) { return v.v; }
__device__ float number(Nested v) { return v.a.v; }
__device__ void set(half2& to, float v) { to = __floats2half2_rn(v, v); }
__device__ void set(half& to, float v) { to = __float2half(v); }
__device__ void set(__nv_bfloat16& to, float v) { to = __float2bfloat16(v); }
__device__ void set(Counted& to, float v) { to = Counted(v); }
__device__ void set(Nested& to, float v) { to.a = Counted(v); set(to.b, v); }
template <class T>
__global__ void reversed(float* x, int written) {
  __shared__ T s[64];
  if (threadIdx.x < written) set(s[threadIdx.x], x[threadIdx.x]);
  __syncthreads();
  x[threadIdx.x] = number(s[63 - threadIdx.x]);
}
__shared__ Counted everywhere[64];
__global__ void reversed_in_the_file(float* x, int written) {
  if (threadIdx.x < written) everywhere[threadIdx.x] = Counted(x[threadIdx.x]);
  __syncthreads();
  x[threadIdx.x] = everywhere[63 - threadIdx.x].v;
}
"""
REVERSALS = [f"reversed<{t}>" for t in ("half", "half2", "__nv_bfloat16", "Counted", "Nested")] + [
    "reversed_in_the_file"
]


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("name", quick(REVERSALS, every=3))
def test_constructors_of_shared_variables_do_not_run(name: str, checked: bool) -> None:
    for _ in range(2):  # the second launch finds what the first left in the same memory
        x = torch.arange(64.0)
        assert findings(REVERSED, name, [x, 64], checked=checked) == []
        assert torch.equal(x, torch.arange(63.0, -1.0, -1.0))


@pytest.mark.parametrize("name", REVERSALS)
def test_such_a_variable_without_a_value_is_found(name: str) -> None:
    where = "everywhere[63" if "file" in name else "number(s[63"
    (line,) = (i for i, text in enumerate(REVERSED.splitlines(), 1) if where in text)
    assert findings(REVERSED, name, [torch.arange(64.0), 32]) == [("uninitialised", line)]


# --- accesses that the compiler could move or remove ---

SUNK = """
__global__ void loads_before_the_test(const float* x, float* y, int n) {
  int i = threadIdx.x;
  float v = x[i];  // found
  if (i < n) y[i] = v;
}
__global__ void selects_afterwards(const float* x, float* y, int n) {
  int i = threadIdx.x;
  float twice = 2 * x[i];  // found
  y[min(i, n - 1)] = i < n ? twice : 0.0f;
}
__device__ float doubled(float4 v) { return 2 * (v.x + v.y + v.z + v.w); }
__global__ void passes_a_structure(const float* x, float* y, int n) {
  int i = threadIdx.x;
  float v = doubled(reinterpret_cast<const float4*>(x)[i]);  // found
  if (i < n) y[i] = v;
}
__global__ void tests_first(const float* x, float* y, int n) {
  int i = threadIdx.x;
  float v = i < n ? x[i] : 0.0f;
  if (i < n) y[i] = v;
}
__global__ void clamps(const float* x, float* y, int n) {
  int i = threadIdx.x;
  float v = x[min(i, n - 1)];
  if (i < n) y[i] = v;
}
__global__ void returns(const float* x, float* y, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  y[i] = x[i];
}
"""


def lines_marked(text: str, name: str) -> list[int]:
    """The lines marked "found" of a kernel."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if f"void {name}(" in line)
    end = next((i for i in range(start + 1, len(lines)) if "__global__" in lines[i]), len(lines))
    return [i + 1 for i in range(start, end) if "// found" in lines[i]]


@pytest.mark.parametrize(
    "name", ["loads_before_the_test", "selects_afterwards", "passes_a_structure", "tests_first", "clamps", "returns"]
)
def test_a_load_counts_where_the_source_makes_it(name: str) -> None:
    wanted = [("out-of-bounds", line) for line in lines_marked(SUNK, name)]
    assert findings(SUNK, name, [torch.ones(60), torch.ones(60), 60]) == wanted


# --- words with values in some of their bytes ---

PARTIAL = """
#include <cuda_fp16.h>
struct Padded { int key; char tag; };
struct Pair { double value; int index; };
struct Mixed { float value; half weight; };
template <class T> __global__ void copies(T* out) {
  __shared__ T s[32];
  s[threadIdx.x] = out[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = s[31 - threadIdx.x];
}
__global__ void sets_members(Padded* a, Pair* b, Mixed* c) {
  __shared__ Padded p[32];
  __shared__ Pair q[32];
  __shared__ Mixed r[32];
  p[threadIdx.x].key = 1; p[threadIdx.x].tag = 2;
  q[threadIdx.x].value = 3; q[threadIdx.x].index = 4;
  r[threadIdx.x].value = 5; r[threadIdx.x].weight = __float2half(6.0f);
  __syncthreads();
  a[threadIdx.x] = p[31 - threadIdx.x];
  b[threadIdx.x] = q[31 - threadIdx.x];
  c[threadIdx.x] = r[31 - threadIdx.x];
}
__global__ void half_of_a_word(float* out) {
  __shared__ float s[32];
  reinterpret_cast<half*>(s)[2 * threadIdx.x] = __float2half(1.0f);
  __syncthreads();
  out[threadIdx.x] = s[31 - threadIdx.x];  // found
}
__global__ void half_of_a_vector(float* out) {
  __shared__ float2 s[32];
  s[threadIdx.x].x = 1.0f;
  __syncthreads();
  float2 v = s[31 - threadIdx.x];  // found
  out[threadIdx.x] = v.x + v.y;
}
__global__ void both_halves(float* out) {
  __shared__ float2 s[32];
  s[threadIdx.x].x = 1.0f;
  s[threadIdx.x].y = 2.0f;
  __syncthreads();
  float2 v = s[31 - threadIdx.x];
  out[threadIdx.x] = v.x + v.y;
}
__global__ void three_bytes(float* out) {
  char* bytes = reinterpret_cast<char*>(out + threadIdx.x);
  for (int i = 0; i < 3; i++) bytes[i] = 0;
  out[threadIdx.x] += 1.0f;  // found
}
__global__ void four_bytes(float* out) {
  char* bytes = reinterpret_cast<char*>(out + threadIdx.x);
  for (int i = 0; i < 4; i++) bytes[i] = 0;
  out[threadIdx.x] += 1.0f;
}
"""


@pytest.mark.parametrize(
    "name", ["half_of_a_word", "half_of_a_vector", "both_halves", "three_bytes", "four_bytes", "sets_members"]
)
def test_a_word_with_values_in_some_bytes(name: str) -> None:
    out = torch.zeros(32)
    memory = [torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.float64), torch.zeros(64)]
    arguments = memory if name == "sets_members" else [out]
    wanted = [("uninitialised", line) for line in lines_marked(PARTIAL, name)]
    assert findings(PARTIAL, name, arguments, block=32, uninitialised=[out]) == wanted


def test_the_message_says_that_some_bytes_are_there() -> None:
    with pytest.raises(FindingError, match="of which only some bytes were written"):
        compiled(PARTIAL, "half_of_a_word").launch((1, 1, 1), (32, 1, 1), 0, [torch.zeros(32)])
    with pytest.raises(FindingError, match="which was never written"):
        compiled(REVERSED, "reversed<half>").launch((1, 1, 1), (64, 1, 1), 0, [torch.ones(64), 32])


# --- __launch_bounds__ ---

BOUNDED = """
#define THREADS 64
__global__ void __launch_bounds__(THREADS, 2) bounded(float* x) { x[threadIdx.x] = 1; }
template <int N, class T>
__global__ __launch_bounds__(2 * N) void instance(T* x)
{
  x[threadIdx.x] = 1;
}
__global__ void __launch_bounds__(64) declared(float* x);
__global__ void declared(float* x) { x[threadIdx.x] = 1; }
"""


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(("name", "line"), [("bounded", 3), ("instance<32, float>", 6)])
def test_blocks_beyond_the_launch_bounds(name: str, line: int, checked: bool) -> None:
    for block, wanted in ((64, []), (65, [("launch-bounds", line)])):
        assert findings(BOUNDED, name, [torch.zeros(128)], block=block, checked=checked) == wanted


# --- loads that need not see what the same launch has written: on an H100, one of these gave the value from before ---

READ_ONLY = """
__device__ float nc(const float* p) {
  float v;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}
__global__ void writes_before(float* x, float* out) {
  int i = threadIdx.x;
  x[i] = 2 * x[i];
  __syncthreads();
  out[i] = LOAD(x + 63 - i);
}
__global__ void writes_its_own_before(float* x, float* out) {
  x[threadIdx.x] = 1;
  out[threadIdx.x] = LOAD(x + threadIdx.x);
}
__global__ void of_an_earlier_block(float* x, float* out) {
  if (blockIdx.x == 0) x[threadIdx.x] = 1;
  else out[threadIdx.x] = LOAD(x + threadIdx.x);
}
__global__ void writes_others(float* x, float* out) {
  int i = threadIdx.x;
  if (i < 32) x[i] = 1;
  __syncthreads();
  out[i] = LOAD(x + 32 + i % 32);
}
__global__ void writes_after(float* x, float* out) {
  int i = threadIdx.x;
  float v = LOAD(x + i);
  x[i] = 2 * v;
  out[i] = v;
}
__global__ void plain(float* x, float* out) {
  int i = threadIdx.x;
  x[i] = 2 * x[i];
  __syncthreads();
  out[i] = x[63 - i];
}
"""
READ_ONLY_LOADS = {"__ldg": READ_ONLY.replace("LOAD", "__ldg"), "ld.global.nc": READ_ONLY.replace("LOAD", "nc")}


@pytest.mark.parametrize("load", READ_ONLY_LOADS)
@pytest.mark.parametrize("name", ["writes_before", "writes_its_own_before", "of_an_earlier_block"])
def test_a_read_only_load_of_what_the_launch_has_written_is_found(load: str, name: str) -> None:
    grid = (2, 1, 1) if name == "of_an_earlier_block" else (1, 1, 1)
    with pytest.raises(FindingError) as raised:
        compiled(READ_ONLY_LOADS[load], name).launch(grid, (64, 1, 1), 0, [torch.ones(64), torch.zeros(64)])
    (finding,) = raised.value.findings
    assert finding.kind == "race"
    if name != "of_an_earlier_block":
        assert "need not see what the same launch has written" in finding.message
    assert finding.other is not None
    assert "x[" in finding.other.source_line


@pytest.mark.parametrize("load", READ_ONLY_LOADS)
@pytest.mark.parametrize("name", ["writes_others", "writes_after", "plain"])
def test_other_read_only_loads_are_left_alone(load: str, name: str) -> None:
    assert findings(READ_ONLY_LOADS[load], name, [torch.ones(64), torch.zeros(64)]) == []


def test_a_launch_may_read_what_an_earlier_one_has_written() -> None:
    x, out, kernel = torch.ones(64), torch.zeros(64), compiled(READ_ONLY_LOADS["__ldg"], "writes_after")
    for _ in range(2):
        kernel.launch((1, 1, 1), (64, 1, 1), 0, [x, out])
    assert torch.equal(x, torch.full((64,), 4.0))


# --- vectors in shared memory ---

VECTORS = """
template <int N>
__global__ void summed(const float* x, float* y, int shift) {
  __shared__ double before;
  __shared__ float s[4 * N];
  if (threadIdx.x == 0) before = 1;
  for (int i = threadIdx.x; i < 4 * N; i += blockDim.x) s[i] = x[i];
  __syncthreads();
  if (threadIdx.x < N - 1) {
    float4 v = *reinterpret_cast<float4*>(s + 4 * threadIdx.x + shift);
    y[threadIdx.x] = v.x + v.y + v.z + v.w + float(before);
  }
}
"""


@pytest.mark.parametrize("checked", [True, False])
def test_an_array_in_shared_memory_begins_where_a_vector_may(checked):
    x, y = torch.arange(64.0), torch.zeros(15)
    compiled(VECTORS, "summed<16>", checked).launch((1, 1, 1), (64, 1, 1), 0, [x, y, 0])
    assert torch.equal(y, x.reshape(16, 4).sum(1)[:15] + 1)


def test_a_vector_between_two_of_an_array_is_misaligned():
    assert findings(VECTORS, "summed<16>", [torch.zeros(64), torch.zeros(15), 2]) == [("misaligned", 10)]
