"""What a kernel has failed stays, if it then says that something is not simulated; and only a simulator's kernels and
published ones may say so."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.checks.scheduling.partial_items import _together, wants_all_cases
from opwright.checks.scheduling.verdict import Outcome
from opwright.errors import NotSimulatedError
from opwright.results import Finding, Status

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
KERNELS = ow.cuda_module(
    "__global__ void times(const float* x, float* out, float factor, int n) {"
    "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) out[i] = factor * x[i]; }"
)


@ow.op("refused_after::twice")
def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return 2 * x


def attach(name: str, factor: float, refuses: bool) -> None:
    def launch(x):
        if refuses and not x.isfinite().all():  # of the check "special values", the next one
            raise NotSimulatedError("a made-up instruction", fix="use another one")
        x, out = x.contiguous(), torch.empty(x.shape)
        if x.numel():
            KERNELS["times"][ow.cdiv(x.numel(), 128), 128](x, out, factor, x.numel())
        return out

    twice.cuda(launch, name=name)


attach("wrong", 3.0, refuses=False)
attach("wrong, refused later", 3.0, refuses=True)
attach("right, refused later", 2.0, refuses=True)


@twice.python(name="in Python")
def _(x):
    if len(x) == 3:
        raise NotSimulatedError("a made-up instruction", fix="use another one")
    return 2 * x


def verdict(name: str, device: str = "cpu-sim"):
    (found,) = ow.check(twice, kernels=[name], device=device, checks=["values", "special values"]).verdicts
    return found


@pytest.mark.compiler
def test_a_wrong_kernel_fails_although_it_is_refused_later():
    found = verdict("wrong, refused later")
    assert found.status is Status.FAIL
    assert [f.check for f in found.findings if f.status is Status.FAIL] == [
        f.check for f in verdict("wrong").findings if f.status is Status.FAIL and f.check == "values"
    ]
    assert "cannot run further here" in found.findings[-1].message
    assert "a made-up instruction" in found.findings[-1].message


@pytest.mark.compiler
def test_a_right_one_is_refused():
    found = verdict("right, refused later")
    assert found.status is Status.REFUSED
    assert "a made-up instruction" in found.reason


def test_a_kernel_in_python_is_not_simulated_and_fails():
    assert verdict("in Python", "cpu").status is Status.FAIL


def test_of_several_items_a_failure_counts_and_a_refusal_alone_refuses():
    failed = Outcome(findings=(Finding("values", Status.FAIL, "n=3", "off"),))
    passed, refused = Outcome(findings=(Finding("values", Status.PASS),)), Outcome(refused="not simulated")
    assert _together([passed, refused]).refused == "not simulated"
    both = _together([refused, failed])
    assert not both.refused
    assert both.findings == failed.findings
    assert both.is_incomplete
    assert "not simulated" in both.not_checked[-1].reason
    assert wants_all_cases([failed, refused])
    assert not wants_all_cases([passed, refused])
