"""Cases that would take a simulator too long are left out, and the rest is checked."""

from __future__ import annotations

import math

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.checks.limits.expected_time import expected_seconds
from opwright.contract.inputs.case import Case
from opwright.results import Status


def case(**sizes: int) -> Case:
    return Case(tuple(sizes.items()), (("Float32", torch.float32),))


SLOW = {case(m=1000, n=1000 + i): 1e6 for i in range(8)}


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({}, 0.0),
        ({case(m=10, n=4): 99.0}, 0.0),  # it may have been compiled in that time
        (SLOW | {case(m=10, n=4): 1.0}, 50.0),  # smaller sizes save nothing
        (SLOW | {case(m=10, n=4): 1.0, case(m=250, n=2): 3.0}, 9.0),  # the least of the estimates
        ({case(m=0, n=i): 1.0 for i in range(8)}, math.inf),
    ],
)
def test_the_time_grows_with_each_size(seconds: dict[Case, float], expected: float) -> None:
    assert expected_seconds(case(m=500, n=3), seconds, 8.0) == expected
    assert expected_seconds(case(m=500, n=3), seconds, expected) == 0.0


@ow.op("expected_time::doubled")
def doubled(x: Float32[Tensor, "m n"]) -> Float32[Tensor, "m n"]:
    return 2 * x


SOURCE = """
__global__ void doubled(const float* x, float* out, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[blockIdx.x * n + i] = 2 * x[blockIdx.x * n + i];
}
"""


@pytest.mark.compiler
@pytest.mark.slow  # a block of 1,024 threads for each of 65,537 rows takes the simulator long
def test_a_kernel_with_large_blocks_does_not_end_its_check() -> None:
    kernels = ow.cuda_module(SOURCE)

    def launch(x: Tensor) -> Tensor:
        x, out = x.contiguous(), torch.empty(x.shape)
        if x.numel():
            kernels["doubled"][x.shape[0], 1024](x, out, x.shape[1])
        return out

    doubled.cuda(launch)
    (verdict,) = ow.check(doubled, device="cpu-sim", checks=["values", "repeated calls"]).verdicts
    assert verdict.status is Status.PASS, verdict
    assert {f.check for f in verdict.findings} >= {"values", "repeated calls"}
