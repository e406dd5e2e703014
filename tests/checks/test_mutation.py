"""The checks of operators that write their arguments: each planted fault is found, no right kernel is accused."""

from __future__ import annotations

from typing import Annotated

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow


def shift_with(namespace, kernel, name="kernel"):
    @ow.op(f"{namespace}::shift")
    def shift(
        x: Annotated[Float[Tensor, "n m"], ow.mutated], y: Float[Tensor, "n m"], a: float
    ) -> Float[Tensor, "n m"]:
        old = x.clone()
        x.add_(y, alpha=a)
        return old * y

    shift.python(kernel, name=name)
    return shift


def right(x, y, a):
    result = (x * y).contiguous()
    x += a * y
    return result


def right_by_another_way(x, y, a):
    result = x.mul(y).contiguous()
    x.copy_(torch.addcmul(x, y, torch.full_like(y, a)))
    return result


def right_in_pieces(x, y, a):
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    for i in range(x.shape[0]):
        result[i] = x[i] * y[i]
        x[i] += a * y[i]
    return result


def forgets_to_write(x, y, a):
    return x * y


def writes_half(x, y, a):
    result = x * y
    x[: x.shape[0] // 2] += (a * y)[: x.shape[0] // 2]
    return result


def uses_the_new_value(x, y, a):
    x += a * y
    return x * y


def writes_the_other_too(x, y, a):
    result = x * y
    x += a * y
    y += 1
    return result


def writes_around(x, y, a):
    result = x * y
    x += a * y
    if not x.is_contiguous() and x.dim() == 2 and x.stride(1) == 2:
        torch.as_strided(x, x.shape, x.stride(), x.storage_offset() + 1).zero_()
    return result


def writes_only_what_is_contiguous(x, y, a):
    result = x * y
    x.contiguous().add_(y, alpha=a)
    return result


def returns_the_argument(x, y, a):
    x.mul_(y)
    return x


@pytest.mark.parametrize("kernel", [right, right_by_another_way, right_in_pieces])
def test_a_right_kernel_passes_every_check(namespace, kernel):
    report = ow.check(shift_with(namespace, kernel))
    assert report.passed, report.verdicts[0].failures
    assert {f.check for f in report.verdicts[0].findings} >= {
        "values", "metadata", "inputs unchanged", "gradients", "opcheck", "torch.compile",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "check", "message"),
    [
        (forgets_to_write, "values", "argument 'x' after the call: "),
        (writes_half, "values", "argument 'x' after the call: "),
        (uses_the_new_value, "values", "output 0: "),
        (writes_the_other_too, "inputs unchanged", "argument 'y' was written"),
        (writes_around, "inputs unchanged", "memory around the elements of argument 'x' was written"),
        (writes_only_what_is_contiguous, "values", "argument 'x' after the call: "),
        (returns_the_argument, "metadata", "shares memory with input 0"),
    ],
)
def test_a_wrong_kernel_is_found(namespace, kernel, check, message):
    report = ow.check(shift_with(namespace, kernel), checks=[check], level="quick")
    failures = report.verdicts[0].failures
    assert [f.check for f in failures] == [check]
    assert message in failures[0].message
    assert "\nwith a=" in failures[0].message, "the number that was drawn is told"
