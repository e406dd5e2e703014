"""Kernels of operators with tensors of their own: at module level, or in the function around them."""

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow

TABLE = torch.tensor([1.0, 2.0, 3.0])


@ow.op("own_tensors::by_module")
def by_module(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return x * TABLE[1]


@by_module.python(name="right")
def _(x):
    return (x * TABLE[1]).contiguous()


@by_module.python(name="wrong")
def _(x):
    return (x * TABLE[2]).contiguous()


def with_closure():
    table = TABLE.clone()

    @ow.op("own_tensors::by_closure")
    def by_closure(x: Float[Tensor, "n 3"]) -> Float[Tensor, "n ..."]:
        return x * table.to(x.dtype)

    by_closure.python(lambda x: (x * table.to(x.dtype)).contiguous(), name="right")
    by_closure.python(lambda x: (x / table.to(x.dtype)).contiguous(), name="wrong")
    return by_closure


def failing(op, kernel):
    (verdict,) = ow.check(op, kernels=[kernel], jobs=1).verdicts
    return {f.check: f.message for f in verdict.findings if f.status is ow.results.Status.FAIL}


@pytest.mark.slow  # every check of several kernels
def test_right_kernels_pass():
    assert failing(by_module, "right") == {}
    assert failing(with_closure(), "right") == {}


@pytest.mark.slow  # a whole check for each kernel
def test_wrong_kernels_are_found():
    may_find = {"values", "torch.compile", "far rows"}
    assert {"values"} <= failing(by_module, "wrong").keys() <= may_find
    found = failing(with_closure(), "wrong")
    assert {"values"} <= found.keys() <= may_find
    assert "32 bits" not in found.get("far rows", "")  # near rows are as wrong
