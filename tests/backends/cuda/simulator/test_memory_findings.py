"""What a kernel may read: each finding beside right kernels that look alike."""

from __future__ import annotations

import functools
import textwrap
from typing import Any

import pytest
import torch

from opwright.backends.build_tools import build_tools
from opwright.backends.cuda.simulator import compilation
from opwright.backends.cuda.simulator import kernel as simulator
from opwright.backends.cuda.source import CudaSource
from opwright.errors import SimulatorError

pytestmark = pytest.mark.compiler


@functools.cache
def compiled(text: str, name: str, checked: bool = True, options: tuple[str, ...] = ()) -> simulator.SimulatedKernel:
    source = CudaSource(textwrap.dedent(text), None, options)
    return simulator.load(compilation.compile_kernel(source, name, build_tools(), checked=checked))


def findings(text: str, name: str, arguments: list[Any], *, block: int = 64, **options: Any) -> list[tuple[str, int]]:
    """The kind and the line of each finding."""
    try:
        compiled(text, name, options.pop("checked", True)).launch((1, 1, 1), (block, 1, 1), 0, arguments, **options)
    except SimulatorError as error:
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
@pytest.mark.parametrize("name", REVERSALS)
def test_constructors_of_shared_variables_do_not_run(name: str, checked: bool) -> None:
    for _ in range(2):  # the second launch finds what the first left in the same memory
        x = torch.arange(64.0)
        assert findings(REVERSED, name, [x, 64], checked=checked) == []
        assert torch.equal(x, torch.arange(63.0, -1.0, -1.0))


@pytest.mark.parametrize("name", REVERSALS)
def test_such_a_variable_without_a_value_is_found(name: str) -> None:
    line = 1 + next(
        i for i, text in enumerate(REVERSED.splitlines()) if "number(s[63" in text or "everywhere[63" in text
    ) + 5 * (name == "reversed_in_the_file")
    kinds = {kind for kind, at in findings(REVERSED, name, [torch.arange(64.0), 32])}
    assert kinds == {"uninitialised"}, line
