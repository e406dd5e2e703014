"""References that make far larger tensors than they get and return are left out where memory would not hold them."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.checks.limits.reference_size import largest_tensor
from opwright.results import Status


@ow.op("large_references::scaled_rows")
def scaled_rows(a: Float32[Tensor, " n"], b: Float32[Tensor, "n m"]) -> Float32[Tensor, "n m"]:
    return torch.diag(a) @ b


@scaled_rows.python(name="right")
def _(a, b):
    return a[:, None] * b


@scaled_rows.python(name="wrong_past_64")
def _(a, b):
    out = a[:, None] * b
    out[64:] = 0
    return out


def reads_values(arguments):
    return torch.zeros(int(arguments[0].sum()))


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (lambda arguments: scaled_rows.contract.traceable(arguments), 4 * 3000**2),
        (lambda arguments: arguments[0].expand(10**6, 3000).sum(0), 4 * 3000),  # a view takes no memory
        (reads_values, 0),
    ],
)
def test_the_largest_tensor_of_a_reference(reference, expected):
    assert largest_tensor(reference, [torch.ones(3000), torch.ones(3000, 1)]) == expected


@pytest.mark.slow  # two whole checks of values
@pytest.mark.parametrize(("kernel", "status"), [("right", Status.PASS), ("wrong_past_64", Status.FAIL)])
def test_such_sizes_are_left_out_and_the_rest_is_checked(kernel, status):
    (verdict,) = ow.check(scaled_rows, kernels=[kernel], device="cpu", checks=["values"]).verdicts
    assert verdict.status is status, verdict
    left_out = [n.why for n in verdict.not_checked]
    assert any("the reference makes a tensor of" in why for why in left_out) or status is Status.FAIL
