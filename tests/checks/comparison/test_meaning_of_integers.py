"""The check "contract": which integers do not change any result."""

from typing import Annotated

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

import opwright as ow


def warnings_of(operator, kernel):
    operator.python(kernel, name="kernel")
    (verdict,) = ow.check(operator, checks=("contract",), device="cpu").verdicts
    return [finding.message for finding in verdict.warnings]


def test_integers_whose_order_does_not_matter(namespace):
    @ow.op(f"{namespace}::total")
    def total(x: UInt8[Tensor, " n"]) -> Int64[Tensor, ""]:
        return x.sum()

    assert warnings_of(total, lambda x: x.sum()) == []


def test_integers_in_a_range_stay_there(namespace):
    @ow.op(f"{namespace}::total")
    def total(x: Annotated[Int64[Tensor, " n"], ow.values(2, 5)]) -> Int64[Tensor, ""]:
        if x.numel() and not 2 <= int(x.min()) <= int(x.max()) <= 5:
            raise ValueError("out of the range")
        return torch.ones_like(x).sum()

    (message,) = warnings_of(total, lambda x: torch.ones_like(x).sum())  # an exception would say that x matters
    assert "'x' does not change any result" in message


def test_integers_without_effect(namespace):
    @ow.op(f"{namespace}::twice")
    def twice(x: Float[Tensor, " n"], y: Int64[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x

    (message,) = warnings_of(twice, lambda x, y: (2 * x).contiguous())
    assert "'y' does not change any result" in message
