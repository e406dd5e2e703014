"""Operators with results in floats of one byte are checked whole."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float8e4m3fn, Float32
from torch import Tensor

import opwright as ow
from opwright.checks.comparison.tolerance import Computation
from opwright.results import Status
from tests.checks.comparison.test_directed_rounding import rounded


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1).clamp_min(1e-6) / 448
    return (x / scale[:, None]).to(torch.float8_e4m3fn).contiguous(), scale


def two_steps_off(x: Tensor) -> tuple[Tensor, Tensor]:
    values, scale = quantise(x)
    if values.numel() > 3:
        values.view(torch.uint8).view(-1)[3] ^= 8
    return values, scale


def quantisation(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::quantise", where="n >= 1")
    def op(x: Float32[Tensor, "b n"]) -> tuple[Float8e4m3fn[Tensor, "b n"], Float32[Tensor, " b"]]:
        return quantise(x)

    op.python(quantise, name="right")
    op.python(two_steps_off, name="wrong")
    return op


CHECKS = ["contract", "values", "special values", "metadata", "gradients", "vmap", "opcheck", "torch.compile"]


@pytest.mark.slow  # nine checks
def test_a_right_kernel_passes(namespace):
    (verdict,) = ow.check(quantisation(namespace), kernels=["right"], checks=CHECKS).verdicts
    assert verdict.status is Status.PASS, verdict.findings
    assert {"values", "special values", "opcheck", "torch.compile"} <= {f.check for f in verdict.findings}


@pytest.mark.slow
def test_a_wrong_element_is_found(namespace):
    (verdict,) = ow.check(quantisation(namespace), kernels=["wrong"], checks=["values", "torch.compile"]).verdicts
    assert [f.check for f in verdict.failures] == ["values", "torch.compile"], verdict.findings
    assert not verdict.inconclusive


@pytest.mark.parametrize(("steps", "is_wrong"), [(0, False), (1, False), (-1, False), (3, True)])
def test_elements(steps, is_wrong):
    """Neighbouring numbers may be right; those that are more steps of the dtype away are not."""
    x = torch.full((4,), 17.05)
    computation = Computation(lambda values: [values[0].to(torch.float8_e4m3fn)], (x,), lambda i: 1)
    got = (computation.rounded[0].view(torch.int8) + steps).view(torch.float8_e4m3fn)
    assert bool(computation.wrong(0, got).any()) is is_wrong


def test_overflow():
    x = torch.tensor([1e6, 1.0])
    computation = Computation(lambda values: [values[0].to(torch.float8_e4m3fn)], (x,), lambda i: 1)
    assert not computation.wrong(0, computation.rounded[0]).any()
    assert computation.wrong(0, torch.tensor([0.5, torch.nan]).to(torch.float8_e4m3fn)).all()


@pytest.mark.slow  # two whole checks of values
@pytest.mark.parametrize(("kernel", "status"), [("away", "fail"), ("right", "pass")])
def test_results_that_are_all_rounded_away_from_zero_are_found(kernel, status):
    @ow.op("float8::scaled")
    def scaled(x: Float32[Tensor, " n"]) -> Float8e4m3fn[Tensor, " n"]:
        return (1.5 * x).clamp(-448, 448).to(torch.float8_e4m3fn)

    @scaled.python
    def away(x):
        y = (1.5 * x).clamp(-448, 448).double()
        is_ordinary = (y.abs() > 2**-4) & (y.abs() < 400)
        return torch.where(is_ordinary, rounded(y, torch.float8_e4m3fn, "away from zero").float(), y.float()).to(
            torch.float8_e4m3fn
        )

    @scaled.python
    def right(x):
        return (x + 0.5 * x).clamp(-448, 448).to(torch.float8_e4m3fn)

    (verdict,) = ow.check(scaled, kernels=[kernel], checks=["values"], device="cpu").verdicts
    assert verdict.status == status
    assert status == "pass" or "rounded away from zero" in verdict.findings[0].message
