"""A derived gradient that torch sums in a half dtype is the reference's doing; one that is wrong is not."""

from __future__ import annotations

import pytest
import torch

from opwright.checks.comparison.tolerance import Computation
from opwright.checks.derivatives.derivative import Doubt
from opwright.checks.derivatives.gradients import wrong_derived_gradient, wrong_gradient


def cumsum(dtype, n=2048):
    grad = torch.rand(n, generator=torch.Generator().manual_seed(0)).to(dtype)
    return grad, Computation(lambda values: [values[0].cumsum(0)], (grad,), lambda i: n)


def summed_in(dtype, grad):
    total, found = torch.zeros((), dtype=dtype), []
    for value in grad:
        total = total + value
        found.append(total)
    return torch.stack(found)


def test_a_sum_in_float16_is_a_doubt_about_the_reference():
    grad, computation = cumsum(torch.float16)
    found = summed_in(torch.float16, grad)
    assert isinstance(wrong_gradient("x", computation, 0, found), str)
    doubt = wrong_derived_gradient("x", computation, 0, found)
    assert isinstance(doubt, Doubt)
    assert "the reference's own gradient loses digits in float16" in doubt.message


@pytest.mark.parametrize("change", [lambda g: g * 1.5, lambda g: -g, lambda g: g.roll(300), torch.zeros_like])
def test_a_wrong_gradient_in_float16_is_wrong(change):
    _, computation = cumsum(torch.float16)
    assert isinstance(wrong_derived_gradient("x", computation, 0, change(computation.rounded[0])), str)


def test_in_float32_nothing_is_excused():
    grad, computation = cumsum(torch.float32)
    assert wrong_derived_gradient("x", computation, 0, computation.rounded[0]) is None
    lossy = summed_in(torch.float16, grad.half()).float()
    assert isinstance(wrong_derived_gradient("x", computation, 0, lossy), str)
