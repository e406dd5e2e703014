"""Once a kernel is known to be wrong, other cases of the same failure are judged at once; other failures as before."""

from __future__ import annotations

import collections

import pytest
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.checks.comparison.tolerance import Computation
from opwright.checks.context import Context
from opwright.checks.outputs import values
from opwright.contract.inputs.cases import cases
from opwright.results import Status
from opwright.target import Target


@ow.op("known_failures::twice")
def twice(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return 2 * x


@twice.python(name="a little off")
def _(x):
    return 2 * x * (1 + 1e-3)


@twice.python(name="off, and where it is sliced by much more")
def _(x):
    if x.numel() and not x.is_contiguous() and x.stride(0) > 1:
        raise RuntimeError("strides")
    return 2 * x * (1 + 1e-3)


@twice.python(name="only strided ones are off")
def _(x):
    return 2 * x * (1 + 1e-3 * (x.numel() > 1 and not x.is_contiguous()))


@pytest.fixture
def runs(monkeypatch):
    """How many runs with rounding errors were made for each computation."""
    made = collections.Counter()
    original = Computation._perturb
    monkeypatch.setattr(Computation, "_perturb", lambda self: (made.update([id(self)]), original(self))[1])
    return made


def failures(kernel):
    context = Context(twice, kernel, Target("cpu"), cases(twice.contract, "quick"))
    return context, [f for f in values.check(context) if getattr(f, "status", None) is Status.FAIL]


@pytest.mark.slow
def test_runs_are_made_for_the_first_case_of_a_failure_alone(runs):
    context, (found,) = failures("a little off")
    assert "elements differ" in found.message
    assert len(context.cases) > 50
    assert 0 < len(runs) < 10  # of the first case, and of simpler ones that were tried


def test_another_failure_is_found_all_the_same():
    _, found = failures("off, and where it is sliced by much more")
    assert ["raised RuntimeError: strides" in f.message for f in found] == [False, True]


@pytest.mark.slow
def test_other_checks_of_the_same_cases_make_all_runs():
    context, (found,) = failures("only strided ones are off")
    assert "layout=contiguous" not in found.case
    observed = [context.observe(case) for case in context.cases if case.layout == "sliced"]
    assert observed
    assert not any(run.reference.is_hasty for run in observed)
