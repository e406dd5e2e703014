"""A kernel whose access to memory that is not there leaves its process without a GPU: one finding, and others go on."""

from __future__ import annotations

import types

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.checks.process import kernel_process

KERNELS = """
extern "C" __global__ void twice(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2 * x[i];
}
extern "C" __global__ void far(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2 * x[i];
  if (i == 64) x = nullptr, out[i] = x[i];
}"""
kernels = ow.cuda_module(KERNELS)


@ow.op("lost::twice")
def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return x * 2


def launcher(name):
    def launch(x):
        x = x.contiguous()
        out = torch.empty_like(x)
        kernels[name][ow.cdiv(x.numel(), 128), 128](x, out, x.numel())
        return out

    return launch


twice.cuda(launcher("twice"), name="right")
twice.cuda(launcher("far"), name="far")


@pytest.mark.gpu
def test_the_error_is_told_once_and_the_next_kernel_is_judged():
    found = {v.kernel: v for v in ow.check(twice, device="cuda", jobs=1).verdicts}
    assert found["right"].status.value == "pass", found["right"].findings
    wrong = found["far"]
    assert wrong.status.value == "fail"
    failed = [f for f in wrong.findings if f.status.value == "fail"]
    assert 1 <= len(failed) <= 3, failed
    assert not any("the check itself failed" in f.message for f in failed), failed
    assert any("illegal memory access" in f.message or "launch failure" in f.message for f in failed), failed
    assert any("the worker ended" in n.why for n in wrong.not_checked)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        ("an illegal memory access was encountered", "fail", "after which the GPU answers nothing to its process"),
        ("out of memory", "inconclusive", "had no memory of the GPU left"),
        ("CUDA-capable device(s) is/are busy or unavailable", "inconclusive", "had no memory of the GPU left"),
    ],
)
def test_what_cuda_answers_between_two_calls_is_told_in_words(error, status, said):
    """As the kernel's process does where a GPU is asked whether all is well; this kernel has it ask one that is not."""

    @ow.op(f"lost::{error.split()[-1]}")
    def double(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return x * 2

    def ends(x):
        def raises():
            raise RuntimeError(f"CUDA error: {error}")

        torch.cuda.synchronize = raises
        kernel_process._Server._end_if_gpu_is_lost(types.SimpleNamespace(_device="cuda"))

    double.python(ends, name="kernel")
    (verdict,) = ow.check(double, device="cpu", checks=["values"]).verdicts
    (finding,) = verdict.findings
    assert verdict.status.value == status
    assert said in finding.message
    assert error in finding.message
    assert ("--jobs" in finding.remedy) == (status == "inconclusive")
