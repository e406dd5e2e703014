"""Findings call a parameter by its name: the one that the line reads through, not its neighbour in memory."""

from __future__ import annotations

import numpy as np
import pytest

import kernelsim
from kernelsim.text.parsed_source import parsed

pytestmark = pytest.mark.compiler

SOURCE = """
template <typename T> __device__ T at(const T* p, int i) { return p[i]; }

__global__ void far(const float* a, const float* b, float* c) {
  int i = 64 * threadIdx.x;
  float x = a[i];
  c[0] = x + b[0];
}

__global__ void by_helper(const float* a, const float* b, float* c) {
  float* to = c;
  const float* from = b;
  to[0] = from[1];
}

__global__ void both(const float* a, const float* b, float* c) {
  c[0] = a[0] + b[1];
}
"""


def message(kernel: str) -> str:
    """That of a launch on single elements, a at the byte 0, b at 64, c at 1024 of the same memory."""
    memory = np.zeros(1024, dtype=np.float32)
    a, b, c = memory[:1], memory[16:17], memory[256:257]
    with pytest.raises(kernelsim.FindingError) as raised:
        kernelsim.cuda(SOURCE)[kernel][1, 2](a, b, c)
    return raised.value.findings[0].message


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("far", "reads 4 bytes, 252 bytes past the end of argument 'a' (float32 [1])"),
        ("by_helper", "reads 4 bytes just past the end of argument 'b' (float32 [1])"),  # no name: the nearest
        ("both", "reads 4 bytes just past the end of argument 'b' (float32 [1])"),  # several names: the nearest
    ],
)
def test_the_argument_is_named(kernel, expected):
    assert message(kernel) == expected


@pytest.mark.parametrize(
    ("head", "count", "names"),
    [
        ("void k(const float* __restrict__ x, int n = 3, float2 (&y)[2])", 3, ()),
        ("void k(const float *x, std::array<int, 2> pair, unsigned n = f(1, 2))", 3, ("x", "pair", "n")),
        ("void __launch_bounds__(64, 2) k(float x[], int n)", 2, ("x", "n")),
        ("void k(float*, int n)", 2, ()),
        ("void k(float* x, int n)", 3, ()),
    ],
)
def test_names_of_parameters(head, count, names):
    """They are empty where they are not known."""
    found = parsed(f"__global__ {head} {{}}").parameter_names("ns::k<float, 2>", count)
    assert found == names


def test_two_kernels_of_one_name_have_no_known_names():
    text = "__global__ void k(float* x) {}\nnamespace a { __global__ void k(float* y) {} }"
    assert parsed(text).parameter_names("a::k", 1) == ()
