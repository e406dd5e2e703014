"""Triton kernels are checked without a GPU: compiled for the CPU, with findings that name the source line."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.results import Status

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
pytestmark = [
    pytest.mark.slow,  # g++ compiles each kernel for each dtype and specialisation: up to twenty seconds
    pytest.mark.triton,
    pytest.mark.compiler,
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
]


@triton.jit
def _scale(x, out, a, n, PAST: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = a * tl.load(x + at, mask=at < n, other=0.0)
    tl.store(out + (at % 64 if SHARED else at), values, mask=at < n + PAST)


@triton.jit
def _scale_rows(x, out, stride, d, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)
    at = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * d + at, 2 * tl.load(x + row * stride + at, mask=at < d), mask=at < d)


@ow.op("simulated::scale")
def scale(x: Float[Tensor, " n"], a: float) -> Float[Tensor, " n"]:
    return a * x


def launcher(past: int = 0, shared: bool = False, factor: float = 1.0):
    def launch(x, a):
        x = x.contiguous()
        out = torch.empty_like(x)
        if x.numel():
            _scale[(triton.cdiv(x.numel(), 128),)](x, out, factor * a, x.numel(), past, shared, BLOCK=128)
        return out

    return launch


# A scalar is a float32 to Triton, hence not for float64.
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
scale.triton(launcher(), name="right", dtypes=FLOATS)
scale.triton(launcher(past=1), name="one too far", dtypes=[torch.float32])
scale.triton(launcher(past=-1), name="one left out", dtypes=[torch.float32])
scale.triton(launcher(shared=True), name="over each other", dtypes=[torch.float32])
scale.triton(launcher(factor=1.01), name="too large", dtypes=[torch.float32])


def verdict_of(kernel: str, **options: object):
    (verdict,) = ow.check(scale, kernels=[kernel], device="cpu-sim", **options).verdicts
    return verdict


def test_a_right_kernel_passes_every_check():
    verdict = verdict_of("right")
    assert (verdict.status, verdict.device) == (Status.PASS, "cpu-sim"), verdict.findings
    assert "simulator" in verdict.reason


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("one too far", "out-of-bounds"),
        ("one left out", "got nan"),
        ("over each other", "race"),
        ("too large", "elements differ"),
    ],
)
def test_a_wrong_kernel_is_found(kernel, expected):
    failure = verdict_of(kernel, checks=["values"]).failures[0]
    assert expected in failure.message.lower()
    assert expected in ("got nan", "elements differ") or "test_simulated_triton.py:27" in failure.message
    assert "--device cpu-sim" in failure.reproduce


@pytest.mark.parametrize("wide", [True, False])
def test_an_offset_of_32_bits_is_a_failure(wide):
    @ow.op("simulated::twice")
    def twice(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return 2 * x

    @twice.triton(name="kernel", dtypes=[torch.float32])
    def launch(x):
        x = x if x.stride(-1) == 1 else x.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype)
        if x.numel():
            _scale_rows[(len(x),)](x, out, x.stride(0), x.shape[1], wide, BLOCK=triton.next_power_of_2(x.shape[1]))
        return out

    (verdict,) = ow.check(twice, checks=["values", "far rows"], device="cpu-sim").verdicts
    assert verdict.status == (Status.PASS if wide else Status.FAIL), verdict.findings
    assert all("past 2³¹ elements" in f.message and "integer-overflow" in f.message for f in verdict.failures)
