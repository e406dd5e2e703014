"""Views whose rows or inner steps lie far apart, in the simulator of CUDA."""

from __future__ import annotations

from typing import Annotated

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.results import Status

pytestmark = [pytest.mark.compiler, pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")]

KERNELS = ow.cuda_module("""
template <class I>
__global__ void twice(const float* x, float* out, int m, int n, I rows, I columns, float factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < m * n) out[i] = factor * x[(i / n) * rows + (i % n) * columns];
}
__global__ void twice_in_place(float* x, int m, int n, long rows, long columns) {
  __shared__ float tile[128];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = i < m * n ? 2 * x[(i / n) * rows + (i % n) * columns] : 0;
  __syncthreads();
  if (i < m * n) x[(i / n) * rows + (i % n) * columns] = tile[threadIdx.x];
}
""")


@ow.op("simulated_far::twice")
def twice(x: Float32[Tensor, "m n"]) -> Float32[Tensor, "m n"]:
    return 2 * x


@ow.op("simulated_far::twice_in_place")
def twice_in_place(x: Annotated[Float32[Tensor, "m n"], ow.mutated]) -> None:
    x.mul_(2)


def attach(name: str, kind: str, factor: float = 2.0) -> None:
    def launch(x):
        by = factor if x.is_contiguous() else 2.0
        x = x if kind == "long" or max(x.stride()) < 2**31 else x.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype)
        KERNELS[f"twice<{kind}>"][ow.cdiv(x.numel(), 128), 128](x, out, *x.shape, *x.stride(), by)
        return out

    twice.cuda(launch, name=name)


attach("wide", "long")
attach("narrow", "int")
attach("narrow and wrong", "int", factor=3.0)


@twice_in_place.cuda
def in_shared_memory(x):
    KERNELS["twice_in_place"][ow.cdiv(x.numel(), 128), 128](x, *x.shape, *x.stride())


def findings(op, kernel: str) -> list[tuple[Status, str]]:
    (verdict,) = ow.check(op, kernels=[kernel], checks=["far rows"], device="cpu-sim").verdicts
    return [(f.status, f.message) for f in verdict.findings if f.check == "far rows"]


@pytest.mark.parametrize(("op", "kernel"), [(twice, "wide"), (twice_in_place, "in_shared_memory")])
def test_offsets_of_64_bits_are_right_and_take_little_memory(op, kernel):
    assert findings(op, kernel) == [(Status.PASS, "4 cases")]


def test_an_offset_of_32_bits_is_a_failure():
    ((status, message),) = findings(twice, "narrow")
    assert status is Status.FAIL
    assert "past 2³¹ elements" in message
    assert "<cuda source>:4: out-of-bounds: reads 4 bytes" in message


def test_it_is_a_warning_where_near_rows_are_wrong_as_well():
    found = findings(twice, "narrow and wrong")
    assert {status for status, message in found if "out-of-bounds" in message} == {Status.WARNING}
