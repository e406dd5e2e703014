"""A CUDA kernel is checked without a GPU: in the simulator, with findings that name the source line."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.checks.scheduling.plan import plan
from opwright.machine import Gpu, this_machine
from opwright.target import Engine, Target
from tests.sampled import quick

pytestmark = [pytest.mark.compiler, pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")]

SOURCE = """
__global__ void scale(const float* x, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (GUARD) {
    out[i] = INDEX * a;
  }
}
__global__ void reverse(const float* x, float* out, int n) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  BARRIER
  out[threadIdx.x] = tile[n - 1 - threadIdx.x];
}
"""


def scale_with(guard: str = "i < n", index: str = "x[i]") -> ow.Op:
    kernels = ow.cuda_module(SOURCE.replace("GUARD", guard).replace("INDEX", index).replace("BARRIER", ""))

    @ow.op("planted::scale_cuda")
    def scale(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
        """``a * x``."""
        return a * x

    @scale.cuda(name="kernel", dtypes=[torch.float32])
    def _(x, a):
        x = x.contiguous()
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        kernels["scale"][ow.cdiv(x.numel(), 32), 32](x, out, a, x.numel())
        return out

    return scale


def verdict_of(op: ow.Op, **options: object):
    (verdict,) = ow.check(op, kernels=["kernel"], checks=["values"], **options).verdicts
    return verdict


def test_a_right_kernel_passes_and_says_where_it_ran():
    verdict = verdict_of(scale_with())
    assert (str(verdict.status), verdict.device) == ("pass", "cpu-sim"), verdict
    assert verdict.reason == "in the CUDA simulator"


# Each is a whole check.
@pytest.mark.parametrize(
    ("fault", "line", "expected_message"),
    quick(
        [
            ({"guard": "true"}, 4, "out"),
            ({"index": "x[i + 1]"}, 4, "out"),
            ({"index": "x[i] + 1"}, None, "elements differ"),
            ({"guard": "i < n - 1"}, None, "got nan"),
        ],
        0,
        2,
    ),
)
def test_a_wrong_kernel_is_caught_at_its_line(fault, line, expected_message):
    verdict = verdict_of(scale_with(**fault))
    failure = verdict.failures[0]
    assert expected_message in failure.message.lower()
    assert line is None or f":{line}" in failure.message or f"line {line}" in failure.message
    assert "cpu-sim" in failure.reproduce


def test_a_missing_barrier_is_a_race():
    kernels = ow.cuda_module(SOURCE.replace("GUARD", "i < n").replace("INDEX", "x[i]").replace("BARRIER", ""))

    @ow.op("planted::reverse_cuda")
    def reverse(x: Float[Tensor, "64"]) -> Float[Tensor, "64"]:
        return x.flip(0)

    @reverse.cuda(name="kernel", dtypes=[torch.float32])
    def _(x):
        out = torch.empty_like(x.contiguous())
        kernels["reverse"][1, 64](x.contiguous(), out, 64)
        return out

    (failure,) = verdict_of(reverse).failures
    assert "race" in failure.message.lower()


def test_calls_choose_a_cuda_kernel_on_a_cpu_only_when_told_to():
    op, x = scale_with(), torch.ones(4)
    assert op.explain(x, 2.0).chosen.kernel == "reference"
    assert "only in the simulator" in str(op.explain(x, 2.0))
    assert op(x, 2.0).tolist() == [2] * 4


@pytest.mark.nvrtc
def test_the_simulator_can_be_asked_for_where_there_is_a_gpu(monkeypatch):
    import dataclasses

    op = scale_with()
    machine = dataclasses.replace(this_machine(), gpus=(Gpu("a GPU", (9, 0), 80 << 30),))
    (task,) = plan(op, machine, ["kernel"], "cpu-sim")
    assert (task.target, str(task.target)) == (Target("cpu", Engine.SIMULATOR), "cpu-sim")
    assert all(task.target.engine is Engine.NATIVE for task in plan(op, machine, ["kernel"], None))
