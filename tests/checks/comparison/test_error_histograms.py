"""Histograms of errors as shares of the tolerance: every wrong element, and no other, is above 1."""

import json

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

import opwright as ow
from opwright.checks.comparison.difference import ErrorSizes


def values_of(report):
    return {v.kernel: f for v in report for f in v.findings if f.check == "values"}


@pytest.mark.slow  # a whole check
def test_a_check_tells_the_errors_of_each_kernel(namespace):
    @ow.op(f"{namespace}::root")
    def root(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return x.abs().sqrt()

    root.python(lambda x: x.abs().sqrt().contiguous(), name="right")

    @root.python(name="wrong")
    def _(x):
        out = x.abs().sqrt().contiguous()
        if out.numel() > 30:
            out.view(-1)[7] *= 1.5
        return out

    report = ow.check(root, checks=["values"])
    found = values_of(report)
    right, wrong = found["right"].error_histogram, found["wrong"].error_histogram
    assert right.edges == wrong.edges
    assert len(right.counts) == len(right.edges) - 1
    assert sum(right.counts) > 1000
    assert right.counts[-1] == 0
    assert wrong.counts[-1] >= 1
    assert right.unit == "share of the allowed error"
    record = json.loads(json.dumps(report.to_json()))["verdicts"][0]["findings"][0]["error_histogram"]
    assert set(record) == {"edges", "counts", "unit"}


def test_integers_are_equal_or_not_and_have_no_histogram(namespace):
    @ow.op(f"{namespace}::largest")
    def largest(x: Float[Tensor, " n"]) -> Int[Tensor, ""]:
        return x.argmax()

    largest.python(lambda x: x.argmax(), name="k")
    assert values_of(ow.check(largest, checks=["values"]))["k"].error_histogram is None


@pytest.mark.parametrize(
    ("error", "tolerance", "wrong", "at"),
    [
        (0.0, 1.0, False, 0),
        (0.0, 0.0, False, 0),
        (0.75, 1.0, False, -2),
        (1.0, 1.0, False, -2),
        (1.001, 1.0, True, -1),
        (5e300, 1e-300, True, -1),
        (1e-300, 0.0, True, -1),
        (float("nan"), 1.0, True, -1),
        (float("nan"), 1.0, False, 0),
        (float("inf"), 1.0, False, -2),
    ],
)
def test_wrong_elements_and_no_others_lie_beyond_one(error, tolerance, wrong, at):
    sizes = ErrorSizes()
    sizes.count(*(torch.tensor([v], dtype=t) for v, t in ((error, torch.float64), (tolerance, torch.float64),
                                                            (wrong, torch.bool))))  # fmt: skip
    counts = sizes.histogram().counts
    assert counts[at] == 1
    assert sum(counts) == 1


def test_nothing_counted_is_no_histogram():
    sizes = ErrorSizes()
    sizes.count(torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=bool))
    assert sizes.histogram() is None
