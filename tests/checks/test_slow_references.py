"""References that take long: what they cannot do in time is left out and said, and the kernel is not blamed."""

from __future__ import annotations

import time

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.results import Status


@ow.op("slow_references::twice")
def twice(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    if x.shape[0] == 65_537:
        until = time.process_time() + 1.2
        while time.process_time() < until:
            pass
    while x.shape[0] == 300_007:
        pass
    return 2 * x


@twice.python(name="right")
def _(x):
    return x + x


@twice.python(name="wrong from 2,000 elements on")
def _(x):
    return torch.where(torch.arange(x.shape[0]) == 2_000, x, 2 * x)


@pytest.mark.slow  # a reference that does not return is stopped after ten seconds
def test_cases_on_which_the_reference_takes_too_long_are_left_out_and_named() -> None:
    report = ow.check(twice, checks=["values", "metadata"], device="cpu", timeout=20)
    right, wrong = report.verdicts
    assert right.status is Status.PASS, right.findings
    left_out = [n.reason for n in right.not_checked if "the reference takes" in n.reason]
    assert any("takes more than 10 s" in reason for reason in left_out)
    assert any("takes 1 s" in reason for reason in left_out)
    assert all("too long with --timeout 20" in reason for reason in left_out)
    assert wrong.status is Status.FAIL


def test_a_case_that_was_asked_for_runs_all_the_same() -> None:
    (verdict,) = ow.check(
        twice, checks=["values"], device="cpu", timeout=20, kernels=["right"], case="n=65537 layout=contiguous"
    ).verdicts
    assert verdict.status in (Status.PASS, Status.THIN), verdict.findings
    assert not any("the reference takes" in n.reason for n in verdict.not_checked)


@ow.op("slow_references::root")
def root(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    if x.is_meta:  # where a check counts its operations
        time.sleep(60)
    return x.sqrt().sum() + x


@root.python(name="in another order")
def _(x):
    return x + x.flip(0).sqrt().sum()


def test_a_reference_that_cannot_be_counted_in_time_is_no_kernel_that_hangs() -> None:
    (verdict,) = ow.check(root, checks=["values"], device="cpu", timeout=5).verdicts
    (finding,) = verdict.findings
    assert finding.status is Status.INCONCLUSIVE
    assert "the reference did not return within 5 s" in finding.message
