"""Findings that follow from one fault are folded; others are shown by themselves."""

from __future__ import annotations

import pytest

from opwright.results import Finding, Status, Verdict
from opwright.results.consequences import same_fault

VALUES = Finding("values", Status.FAIL, "n=5", "1 of 5 elements differ\n  at (4,): expected 1.0, got 0.0")
WRITTEN = Finding("inputs unchanged", Status.FAIL, "n=1", "argument 'x' was written: 1 of 1 elements differ")
RAISED = Finding("values", Status.FAIL, "n=1", "the kernel raised ValueError: no such size\nk.py:3:")
OUTSIDE = Finding(
    "values",
    Status.FAIL,
    "n=1",
    "the kernel raised SimulatorError: k on the simulator: 1 finding\nk.py:5: out-of-bounds: reads 4 bytes",
)


@pytest.mark.parametrize(
    ("cause", "check", "message", "follows"),
    [
        (VALUES, "torch.compile", "static shapes, aot_eager: 1 of 4096 elements differ", True),
        (VALUES, "far rows", "output 0: 1 of 14 elements differ\nthe rows of this case lie far apart", True),
        (VALUES, "gradients", "the gradient of 'x' is wrong: 1 of 5 elements differ", False),
        (VALUES, "torch.compile", "the compiled gradient differs from the eager one", False),
        (VALUES, "memory", "memory past the end of argument 'x' was written: 4 bytes", False),
        (VALUES, "inputs unchanged", WRITTEN.message, False),
        (WRITTEN, "gradients", "the forward wrote an input, not the backward: argument 'x' was written", True),
        (WRITTEN, "gradients", "the backward wrote argument 'y'", False),
        (WRITTEN, "opcheck", "test_schema failed with Argument x is not defined as mutable but was mutated", True),
        (WRITTEN, "protected memory", "the kernel crashed with SIGSEGV as it wrote into argument 'x'", True),
        (WRITTEN, "torch.compile", "static shapes, aot_eager: 1 of 4096 elements differ", False),
        (RAISED, "opcheck", "test_schema failed with ValueError: no such size", True),
        (RAISED, "gradients", "the backward raised ValueError: another size", False),
        (OUTSIDE, "gradients", "SimulatorError: k on the simulator: 1 finding\nk.py:5: out-of-bounds: reads 4", True),
        (OUTSIDE, "gradients", "SimulatorError: k on the simulator: 1 finding\nk.py:9: out-of-bounds: reads 4", False),
        (OUTSIDE, "memory", "SimulatorError: k on the simulator: 1 finding\nk.py:5: race: reads 4", False),
    ],
)
def test_what_follows(cause, check, message, follows):
    assert same_fault([cause, Finding(check, Status.FAIL, "n=9", message)]) == ({1: 0} if follows else {})


def test_nothing_follows_from_what_comes_later_or_passes():
    compiled = Finding("torch.compile", Status.FAIL, "n=9", "1 of 9 elements differ")
    assert not same_fault([compiled, VALUES])
    assert not same_fault([Finding("values", Status.PASS, message="9 cases"), compiled])


def test_a_text_has_each_fault_once_and_names_the_checks():
    compiled = Finding("torch.compile", Status.FAIL, "n=9", "1 of 9 elements differ")
    other = Finding("metadata", Status.FAIL, "n=9", "output 0 has strides [1]")
    verdict = Verdict("demo::f", "k", "python", "cpu", Status.FAIL, findings=(VALUES, compiled, other))
    text = str(verdict)
    assert text.count("elements differ") == 1
    assert "the same fault: torch.compile" in text
    assert "has strides" in text
    assert verdict.failures == (VALUES, compiled, other)
