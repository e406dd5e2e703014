"""Pointers and converted variables of simulated host functions: places in memory, not numbers that are added to."""

from __future__ import annotations

import pytest
import torch

from opwright.backends.cuda.host.part import HostPart
from opwright.backends.cuda.module import CudaModule
from opwright.backends.simulation import CudaSource
from opwright.errors import CompileError, NotSimulatedError, SimulatorError

pytestmark = pytest.mark.compiler

ROW = """
__global__ void copied(const float* x, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i];
}
__global__ void copied_by_four(const float4* x, float4* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i];
}
torch::Tensor row(torch::Tensor x, int64_t at) {
  const int n = x.size(1);
  auto out = torch::zeros({n}, x.options());
  const float* first = x.data_ptr<float>();
  copied<<<(n + 31) / 32, 32>>>(first + at * n, out.data_ptr<float>(), n);
  return out;
}
"""


def row_of(old: str = "", new: str = ""):
    assert old in ROW
    return HostPart(CudaModule(CudaSource(ROW.replace(old, new)))).function("row")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("first + at * n", "n * at + first"),
        ("first + at * n", "reinterpret_cast<float*>(reinterpret_cast<char*>(x.data_ptr()) + at * n * sizeof(float))"),
        ("copied<<<(n + 31) / 32, 32>>>(first + at * n", "first += at * n;  copied<<<(n + 31) / 32, 32>>>(first"),
        ("data_ptr<float>();", "data_ptr<float>() + (at + 1) * n - n;\n  at = 0;"),
        ("  copied<<<", "  if (first != nullptr && reinterpret_cast<uintptr_t>(first) % 4 == 0)\n  copied<<<"),
    ],
)
def test_a_pointer_goes_on_in_memory(old: str, new: str) -> None:
    x = torch.randn(3, 40)
    row = row_of(old, new)
    assert torch.equal(row(x, 2), x[2])
    assert torch.equal(row(x[1:], 1), x[2])


def test_a_step_has_the_size_of_what_is_pointed_to() -> None:
    launch = (
        "copied_by_four<<<1, 32>>>(reinterpret_cast<const float4*>(x.data_ptr<float>()) + at,"
        " reinterpret_cast<float4*>(out.data_ptr<float>()), n / 4);"
    )
    row = row_of("copied<<<(n + 31) / 32, 32>>>(first + at * n, out.data_ptr<float>(), n);", launch)
    x = torch.randn(2, 32)
    assert torch.equal(row(x, 3), x.flatten()[12:44])


def test_a_wrong_place_is_found() -> None:
    x = torch.randn(3, 40)
    assert not torch.equal(row_of("at * n,", "at * (n - 1),")(x, 2), x[2])
    with pytest.raises(SimulatorError, match="out-of-bounds: reads"):
        row_of("at * n,", "(at + 1) * n - 1,")(x, 2)
    with pytest.raises(NotSimulatedError, match="must lie within its tensor, got byte 640 of 480"):
        row_of("at * n,", "(at + 2) * n,")(x, 2)


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("x.data_ptr() + at", "the size of what a pointer points to is not known"),
        ("reinterpret_cast<Unknown*>(first) + at", "the size of what a pointer points to is not known"),
        ("first * 2", r"a pointer or an iterator is not simulated with \*"),
        ("first - first", "a pointer or an iterator is not simulated with -"),
        ("(float*)n", "a pointer from a number"),
        ("(const float*)((const char*)first + 2)", "at a multiple of 4 bytes, got byte 2"),
    ],
)
def test_other_pointers_are_refused(new: str, message: str) -> None:
    with pytest.raises(NotSimulatedError, match=message):
        row_of("first + at * n", new)(torch.randn(3, 40), 1)


TYPES = """
__global__ void filled(PARAMETER out, int n) { if (threadIdx.x < n) out[threadIdx.x] = VALUE; }
torch::Tensor ones(torch::Tensor x) {
  filled<<<1, 32>>>(ARGUMENT, x.numel());
  return x;
}
"""


@pytest.mark.parametrize(
    ("dtype", "parameter", "argument", "is_right"),
    [
        (torch.int64, "long long*", "x.data_ptr<int64_t>()", False),
        (torch.int64, "long long* __restrict__", "reinterpret_cast<long long*>(x.data_ptr<int64_t>())", True),
        (torch.int64, "long*", "x.data_ptr<int64_t>()", True),
        (torch.int64, "int64_t*", "x.data_ptr<int64_t>() + 0", True),
        (torch.float16, "__half*", "x.data_ptr<at::Half>()", False),
        (torch.float16, "__half*", "reinterpret_cast<half*>(x.data_ptr<at::Half>())", True),
        (torch.int8, "char*", "x.data_ptr<int8_t>()", False),
        (torch.int32, "int*", "x.data_ptr<int32_t>()", True),
        (torch.float32, "float*", "x.data_ptr()", False),
        (torch.float32, "float*", "(float*)x.data_ptr()", True),
    ],
)
def test_pointers_to_types_of_one_size_are_not_converted(
    dtype: torch.dtype, parameter: str, argument: str, is_right: bool
) -> None:
    """A published candidate that nvcc refuses passed: it had an int64_t* for a long long*."""
    value = "__float2half(1.f)" if dtype is torch.float16 else "1"
    text = TYPES.replace("PARAMETER", parameter).replace("ARGUMENT", argument).replace("VALUE", value)
    ones = HostPart(CudaModule(CudaSource(f"#include <cuda_fp16.h>\n{text}"))).function("ones")
    if is_right:
        assert ones(torch.zeros(5, dtype=dtype)).tolist() == [1] * 5
        return
    with pytest.raises(CompileError, match=r"an argument must be a .*\*, got a .*\*"):
        ones(torch.zeros(5, dtype=dtype))


@pytest.mark.parametrize(
    ("declared", "assigned", "expected"),
    [("int m", "n * 0.5", 3), ("auto m = n", "n / 2.0f", 3), ("float m", "n / 2", 3), ("auto m = 0.5", "n / 2.0", 3.5)],
)
def test_a_variable_keeps_its_type(declared: str, assigned: str, expected: float) -> None:
    """A block count that became a fraction covered fewer elements, or more."""
    text = f"__global__ void k() {{}}\ndouble half(int n) {{ {declared}; m = {assigned}; return m; }}"
    assert HostPart(CudaModule(CudaSource(text))).function("half")(7) == expected
