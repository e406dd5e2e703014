"""Wrong kernels in C++ and Triton are caught too, with faults that Python kernels cannot have."""

import textwrap

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from tests.sampled import quick


def scale_op():
    @ow.op("planted::scale_native")
    def scale(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
        """``a * x``."""
        return a * x

    return scale


CPP = """
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
using torch::stable::Tensor;

Tensor scale(const Tensor& x, double a) {
  Tensor input = PREPARE;
  Tensor out = torch::stable::new_empty(x, x.sizes());
  if (x.scalar_type() != torch::headeronly::ScalarType::Float) return out;
  const float* in = static_cast<const float*>(input.const_data_ptr());
  float* result = static_cast<float*>(out.mutable_data_ptr());
  for (int64_t i = 0; i < x.numel() LESS; ++i) result[i] = static_cast<float>(a) * in[i STEP];
  return out;
}
"""


def cpp_kernel(tmp_path, prepare="torch::stable::contiguous(x)", less="", step=""):
    source = tmp_path / "scale.cpp"
    source.write_text(CPP.replace("PREPARE", prepare).replace("LESS", less).replace("STEP", step))
    return source


@pytest.mark.compiler
# Each is a whole check.
@pytest.mark.parametrize(
    ("fault", "expected_message"),
    quick(
        [
            ({"prepare": "x"}, "elements differ"),  # ignores strides
            ({"less": "- x.numel() % 4"}, "got nan"),  # leaves the tail unwritten
            ({"step": "* 1000000007"}, "crashed with SIGSEGV"),
        ],
        1,
    ),
)
def test_a_wrong_cpp_kernel_is_caught(tmp_path, fault, expected_message):
    import torch

    scale = scale_op()
    scale.cpp(cpp_kernel(tmp_path, **fault), entry="scale", dtypes=[torch.float32])
    (verdict,) = ow.check(scale, checks=["values"]).verdicts
    assert expected_message in verdict.failures[0].message


@pytest.mark.slow
@pytest.mark.compiler
def test_the_same_cpp_kernel_without_a_fault_passes(tmp_path):
    import torch

    scale = scale_op()
    scale.cpp(cpp_kernel(tmp_path), entry="scale", dtypes=[torch.float32])
    assert ow.check(scale).passed


@pytest.mark.compiler
def test_a_cpp_kernel_that_does_not_compile_is_a_finding_with_the_line(tmp_path):
    scale = scale_op()
    scale.cpp(cpp_kernel(tmp_path, step="+ undeclared"), entry="scale")
    (verdict,) = ow.check(scale).verdicts
    assert verdict.failures[0].check == "build"
    assert "scale.cpp:" in verdict.failures[0].message
    assert "undeclared" in verdict.failures[0].message


TRITON = """
import triton
import triton.language as tl


@triton.jit
def kernel(x, out, a, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = MASK
    tl.store(out + i, a * tl.load(x + i, mask=inside), mask=inside)


def scale(x, a):
    x = PREPARE
    out = x.new_empty(x.shape)
    if out.numel():
        kernel[(triton.cdiv(out.numel(), 64),)](x, out, a, out.numel(), BLOCK=64)
    return out
"""


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.parametrize("interpreter", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_line_of_a_triton_kernel_that_raises_is_told(tmp_path, interpreter):
    file = tmp_path / "scale_triton.py"
    file.write_text(TRITON.replace("PREPARE", "x.contiguous()").replace("MASK", "i + tl.arange(0, 32) < n"))
    scale = scale_op()
    scale.triton(file, entry="scale", dtypes=[torch.float32])
    verdict = ow.check(scale, checks=["values"], device="cpu", interpreter=interpreter).verdicts[0]
    (failure,) = verdict.failures
    assert "scale_triton.py:9:\n    inside = i + tl.arange(0, 32) < n" in failure.message


@pytest.mark.slow
@pytest.mark.triton
# Each is a whole check.
@pytest.mark.parametrize(
    ("prepare", "mask", "passes"),
    quick(
        [
            ("x.contiguous()", "i < n", True),
            ("x.contiguous()", "i < n // 4 * 4", False),  # wrong tail
            ("x", "i < n", False),  # ignores strides
        ],
        0,
        1,
    ),
)
def test_a_wrong_triton_kernel_is_caught_on_a_cpu(tmp_path, prepare, mask, passes):
    file = tmp_path / "scale_triton.py"
    file.write_text(textwrap.dedent(TRITON).replace("PREPARE", prepare).replace("MASK", mask))
    scale = scale_op()
    scale.triton(file, entry="scale", dtypes=[torch.float32])
    report = ow.check(scale, checks=["values"])
    assert report.passed == passes, report
    if not torch.cuda.is_available():
        assert report.verdicts[0].device == "cpu-sim"


# Adds the sum of k to x, in whole tiles without a mask, and reads k four elements at a time.
TRITON_TILES = """
import triton
import triton.language as tl

@triton.jit
def kernel(x, k, out, n, m, MASKED: tl.constexpr, TILE: tl.constexpr):
    first = tl.program_id(0) * TILE
    i = first + tl.arange(0, TILE)
    if first + TILE <= n:
        total = tl.load(x + i)
        for j in range(0, m, 4):
            at = j + tl.arange(0, 4)
            exists = at < m
            taps = tl.load(k + at, mask=exists if MASKED else at >= 0, other=0.0)
            total += tl.sum(tl.where(exists, taps, 0.0))
        tl.store(out + i, total)
    else:
        total = tl.load(x + i, mask=i < n)
        for j in range(m):
            total += tl.load(k + j)
        tl.store(out + i, total, mask=i < n)

def add_sum(x, k):
    x, k, out = x.contiguous(), k.contiguous(), x.new_empty(x.shape)
    if out.numel():
        kernel[(triton.cdiv(x.numel(), 1024),)](x, k, out, x.numel(), k.numel(), MASKED=IS_MASKED, TILE=1024)
    return out
"""


@pytest.mark.slow  # Triton's interpreter
@pytest.mark.triton
@pytest.mark.parametrize("masked", [True, False])
def test_a_read_past_the_end_that_only_whole_tiles_make_is_found_on_a_cpu(tmp_path, masked):
    @ow.op("planted::add_sum")
    def add_sum(x: Float[Tensor, " n"], k: Float[Tensor, " m"]) -> Float[Tensor, " n"]:
        return x + k.sum()

    file = tmp_path / "add_sum_triton.py"
    file.write_text(TRITON_TILES.replace("IS_MASKED", str(masked)))
    add_sum.triton(file, entry="add_sum", dtypes=[torch.float32])
    how = {"checks": ["protected memory"], "device": "cpu", "interpreter": True}
    (verdict,) = ow.check(add_sum, **how).verdicts
    assert (verdict.status == "pass") is masked
    if not masked:
        assert "past the end of argument 'k'" in verdict.failures[0].message
        (verdict,) = ow.check(add_sum, **how, case=verdict.failures[0].case).verdicts
        assert verdict.status == "fail"
    (verdict,) = ow.check(add_sum, checks=["values"], device="cpu-sim").verdicts
    assert (verdict.status == "pass") is masked
    if not masked:
        assert "add_sum_triton.py:14: out-of-bounds" in verdict.failures[0].message
