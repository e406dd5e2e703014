"""The check "sanitizer": faults that values do not show are found with their line, and right kernels left alone."""

from __future__ import annotations

import pytest

import opwright as ow
from tests.checks.sanitizer.operators import RIGHT, WRONG, double


@pytest.fixture(scope="module")
def verdicts():
    # Two builds of each kernel, and a process in which torch is imported under AddressSanitizer.
    kernels = ["reads_on", "overflows", "right_with_tiles"]
    return {v.kernel: v for v in ow.check(double, kernels=kernels, checks=["sanitizer"]).verdicts}


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("kernel", ["reads_on", "overflows"])
def test_a_fault_that_no_value_shows_is_found_with_its_line(verdicts, kernel):
    message, line = WRONG[kernel]
    (failed,) = [f for f in verdicts[kernel].findings if f.status.value == "fail"]
    assert failed.check == "sanitizer"
    assert message in failed.message
    assert line in failed.message
    assert "kernels.cpp:" in failed.message


@pytest.mark.slow
@pytest.mark.compiler
def test_a_right_kernel_is_left_alone(verdicts):
    assert verdicts["right_with_tiles"].status.value == "pass", verdicts["right_with_tiles"].findings


@pytest.mark.exhaustive
@pytest.mark.compiler
def test_each_fault_and_each_right_kernel():
    found = {v.kernel: v for v in ow.check(double, checks=["sanitizer"], kernels=[*WRONG, *RIGHT]).verdicts}
    for kernel, (message, line) in WRONG.items():
        assert any(message in f.message and line in f.message for f in found[kernel].findings), found[kernel].findings
    for kernel in RIGHT:
        assert found[kernel].status.value == "pass", found[kernel].findings


def test_without_being_asked_for_it_is_no_part_of_a_quick_check():
    (verdict,) = ow.check(double, kernels=["in Python"], checks=[]).verdicts
    assert not any(f.check == "sanitizer" for f in verdict.findings)


def test_a_language_that_no_tool_watches_is_told():
    (verdict,) = ow.check(double, kernels=["in Python"], checks=["sanitizer"]).verdicts
    (told,) = [n for n in verdict.not_checked if n.check == "sanitizer"]
    assert "no tool watches what python kernels access" in told.why
