"""What torch's own check raises for reasons of its own is no finding."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float32, Int8
from torch import Tensor

import opwright as ow


def quantised(x):
    scale = x.abs().amax(1, keepdim=True).clamp_min(1e-6) / 127
    return (x / scale).round().to(torch.int8), scale


@pytest.mark.parametrize(("traces", "status"), [(True, "pass"), (False, "fail")])
def test_an_integer_before_a_floating_result(traces, status):
    @ow.op("opcheck::by_rows", where="n >= 1")
    def by_rows(x: Float32[Tensor, "m n"]) -> tuple[Int8[Tensor, "m n"], Float32[Tensor, "m 1"]]:
        return quantised(x)

    calls = []

    def kernel(x):
        calls.append(x)
        q, scale = quantised(x)
        return q.contiguous(), scale if traces else scale * (1 + len(calls) % 2)

    by_rows.python(kernel, name="kernel")
    (verdict,) = ow.check(by_rows, checks=["opcheck"], kernels=["kernel"]).verdicts
    assert verdict.status == status, verdict.findings
