"""Results that depend on what a mask leaves out of a load in Triton, where the load names no other value."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.results import Status

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
pytestmark = [
    pytest.mark.triton,
    pytest.mark.compiler,
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
]


@ow.op("masked::add_up")
def add_up(x: Float32[Tensor, "b n"], keep: Float32[Tensor, " n"]) -> Float32[Tensor, " b"]:
    return x @ keep.sign().abs()


@triton.jit
def _add_up(x, keep, out, n, HOW: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = at < n
    if HOW == "masked out afterwards" or HOW == "left out":
        values = tl.load(x + row * n + at, mask=inside)
    else:
        values = tl.load(x + row * n + at, mask=inside, other=0.0)
    if HOW == "left out in the other operand":
        kept = tl.load(keep + at, mask=inside)
    else:
        kept = tl.load(keep + at, mask=inside, other=0.0)
    if HOW == "left out":
        total = tl.sum(tl.where(kept != 0, values, 0.0) + 0 * values)
    elif HOW == "multiplied":
        total = tl.sum(values * (kept != 0).to(tl.float32))
    else:
        total = tl.sum(tl.where(inside & (kept != 0), values, 0.0))
    if HOW == "left out in the other operand":
        total += tl.sum(values * kept) * 0
    tl.store(out + row, total)


WRONG = ["left out", "left out in the other operand"]
RIGHT = ["masked out afterwards", "multiplied", "named"]


def launcher(how):
    def launch(x, keep):
        x, keep = x.contiguous(), keep.contiguous()
        out = x.new_empty(len(x))
        if len(x):
            _add_up[(len(x),)](x, keep, out, x.shape[1], how, max(16, triton.next_power_of_2(x.shape[1])))
        return out

    return launch


for name in (*WRONG, *RIGHT):
    add_up.triton(launcher(name), name=name)


def found(kernel):
    (verdict,) = ow.check(add_up, kernels=[kernel], checks=["memory"], device="cpu-sim").verdicts
    (finding,) = verdict.findings
    return finding


def slow(kernels):
    """All but the first: g++ compiles each kernel for some sizes."""
    return [kernels[0], *(pytest.param(kernel, marks=pytest.mark.slow) for kernel in kernels[1:])]


@pytest.mark.parametrize("kernel", slow(WRONG))
def test_what_is_left_out_and_used_is_a_warning(kernel):
    finding = found(kernel)
    assert finding.status is Status.WARNING, finding
    assert "a mask leaves out of a load without other=" in finding.message
    assert "other=" in finding.remedy


@pytest.mark.parametrize("kernel", slow(RIGHT))
def test_what_is_named_or_not_used_is_right(kernel):
    assert found(kernel).status is Status.PASS, found(kernel)
