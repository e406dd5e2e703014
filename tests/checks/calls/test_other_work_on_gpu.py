"""The check "execution context" on a GPU: beside other work, and with another GPU as the current one."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.results import Status

pytestmark = pytest.mark.gpu
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="another GPU needs two")


@ow.op("other_work::reversed_twice")
def reversed_twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return 2 * x.flip(0)


# Each block doubles some elements, waits for the others, and copies what another one has doubled.
BARRIER = """
__global__ void reversed_twice(const float* x, float* doubled, float* out, unsigned* ended, int n) {
  int first = blockIdx.x + gridDim.x * threadIdx.x, step = gridDim.x * blockDim.x;
  for (int i = first; i < n; i += step) doubled[i] = 2 * x[i];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    long long began = clock64();
    atomicAdd(ended, 1u);
    while (atomicAdd(ended, 0u) < gridDim.x WHILE);
  }
  __syncthreads();
  for (int i = first; i < n; i += step) out[i] = ((volatile float*)doubled)[n - 1 - i];
}
"""


def waits(condition):
    kernels = ow.cuda_module(BARRIER.replace("WHILE", condition))

    def launch(x):
        x = x.contiguous()
        out, doubled = torch.empty_like(x), torch.zeros_like(x)
        if len(x):
            ended = torch.zeros(1, dtype=torch.uint32, device=x.device)
            kernels["reversed_twice"][BLOCKS, 1024](x, doubled, out, ended, len(x))
        return out

    return launch


BLOCKS = 128  # no more than a GPU has SMs
reversed_twice.cuda(waits("&& clock64() - began < 2000"), name="waits for one microsecond")
reversed_twice.cuda(waits(""), name="waits as long as it takes")
_ones: dict[object, Tensor] = {}
_kept: dict[object, Tensor] = {}


@reversed_twice.python(name="allocates on the first GPU", devices=["cuda"])
def _(x):
    return torch.empty(len(x), device="cuda:0").copy_(2 * x.flip(0))


@reversed_twice.python(name="keeps a table on one GPU", devices=["cuda"])
def _(x):
    if len(x) not in _ones:
        _ones[len(x)] = torch.ones_like(x)
    return (x + x * _ones[len(x)]).flip(0)


@reversed_twice.python(name="keeps a table on each GPU", devices=["cuda"])
def _(x):
    if (len(x), x.device) not in _kept:
        _kept[len(x), x.device] = torch.ones_like(x)
    return (x + x * _kept[len(x), x.device]).flip(0)


def findings(kernel):
    verdict = ow.check(reversed_twice, kernels=[kernel], checks=["execution context"], device="cuda").verdicts[0]
    return verdict, " ".join(finding.message for finding in verdict.findings if finding.status is Status.FAIL)


def test_blocks_that_start_late_are_found():
    verdict, message = findings("waits for one microsecond")
    assert verdict.status is Status.FAIL, verdict.findings
    assert "beside other work: " in message


def test_a_right_kernel_beside_other_work():
    verdict, _ = findings("waits as long as it takes")
    assert verdict.status is Status.PASS, verdict.findings


@two_gpus
@pytest.mark.parametrize("kernel", ["allocates on the first GPU", "keeps a table on one GPU"])
def test_another_gpu_is_found(kernel):
    verdict, message = findings(kernel)
    assert verdict.status is Status.FAIL, verdict.findings
    assert "for each GPU" in message


@two_gpus
@pytest.mark.parametrize("kernel", ["keeps a table on each GPU", "waits as long as it takes"])
def test_a_right_kernel_on_another_gpu(kernel):
    verdict, _ = findings(kernel)
    assert verdict.status is Status.PASS, verdict.findings


def test_one_gpu_is_said():
    verdict, _ = findings("keeps a table on each GPU")
    is_said = any("another current GPU" in n.why for n in verdict.not_checked)
    assert is_said == (torch.cuda.device_count() < 2)
