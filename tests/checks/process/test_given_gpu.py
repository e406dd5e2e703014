"""A kernel runs on the GPU that was given to its unit, also if its process is forked from one that had another."""

from __future__ import annotations

import os

import pytest
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from tests.sampled import quick


@ow.op("given::scale")
def scale(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return 7 * x


scale.python(lambda x: x * int(os.environ["CUDA_VISIBLE_DEVICES"]), name="reads")


@pytest.mark.parametrize(("gpu", "status"), quick([("3", "fail"), ("7", "pass"), ("4", "fail")], 0, 1))
def test_the_kernel_sees_the_gpu_of_its_unit(monkeypatch, gpu, status):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpu)
    assert [v.status for v in ow.check(scale, checks=["values"], device="cpu")] == [status]
