"""An error of a check itself says nothing about the kernel."""

from __future__ import annotations

import pytest
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.checks.process.setup import error_of_check
from opwright.results import CheckReport, Finding, Status, Verdict


@pytest.mark.parametrize("error", ["NotImplementedError: no such sum", "torch.OutOfMemoryError: out of memory"])
def test_it_is_neither_a_pass_nor_a_failure(error):
    finding = error_of_check("values", f"Traceback\n{error}")
    assert finding.status is Status.INCONCLUSIVE
    assert error in finding.message
    assert finding.remedy
    verdict = Verdict("demo::f", "kernel", "python", "cpu", Status.INCONCLUSIVE, findings=(finding,))
    assert not CheckReport({}, (verdict,)).passed


def test_an_error_of_the_kernel_is_a_failure(namespace):
    @ow.op(f"{namespace}::double")
    def double(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return 2 * x

    @double.python
    def raises(x):
        raise NotImplementedError("no such sum")

    found: tuple[Finding, ...] = ow.check(double, checks=["values", "opcheck"]).verdicts[0].findings
    assert [f.status for f in found if f.check == "values"] == [Status.FAIL]


def test_an_error_in_making_inputs_is_not_the_kernels(namespace):
    @ow.op(f"{namespace}::double")
    def double(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return 2 * x

    double.contract.own_inputs.sizes = {"n": ("three",)}
    double.python(lambda x: 2 * x, name="right")
    verdict = ow.check(double, checks=["values"]).verdicts[0]
    assert verdict.status is Status.INCONCLUSIVE
    assert [f.check for f in verdict.findings if f.status is Status.INCONCLUSIVE] == ["inputs"]
