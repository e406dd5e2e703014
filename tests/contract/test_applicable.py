"""Sizes inside the applicability: where the usual ones are not taken, others are found by trying."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from opwright.contract.definition.define import make_contract
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.cases import cases
from opwright.errors import CheckError
from tests.sampled import quick


def contract_of(function):
    return make_contract("applicable::f", function, {})


def attention(q: Float[Tensor, "b h s d"], k: Float[Tensor, "b h t d"]) -> Float[Tensor, "b h s t"]:
    return q @ k.mT


def matrices(x: Float[Tensor, "m n"], y: Float[Tensor, "p q"], a: float, causal: bool = False) -> Float[Tensor, "m n"]:
    return x


def flat(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return x


def taken(function, condition, level="quick"):
    """The cases of a contract, and those on which a condition on the arguments holds."""
    contract = contract_of(function)

    def admits(case):
        try:
            return bool(condition(*arguments_of(contract, case, "cpu")))
        except CheckError:
            return False

    found = cases(contract, level, admits=admits)
    return found, [case for case in found if admits(case)]


@pytest.mark.parametrize(
    ("function", "condition"),
    quick(
        [
            (attention, lambda q, k: q.shape[3] in (64, 128)),
            # Large inputs.
            pytest.param(
                attention, lambda q, k: q.shape[2] % 16 == 0 and k.shape[2] == q.shape[2], marks=pytest.mark.slow
            ),
            pytest.param(
                attention,
                lambda q, k: q.shape[2] % 128 == 0 and k.shape[2] % 64 == 0 and q.shape[3] == 64,
                marks=pytest.mark.slow,
            ),
            (attention, lambda q, k: q.shape[1] % 2 == 0 and q.shape[3] & (q.shape[3] - 1) == 0),
            (matrices, lambda x, y, a, causal: x.shape[1] == y.shape[0]),
            (matrices, lambda x, y, a, causal: x.shape == y.shape),
            (matrices, lambda x, y, a, causal: x.shape[0] == 3 * y.shape[0]),
            (matrices, lambda x, y, a, causal: x.shape[0] == y.shape[0] * y.shape[1]),
            (matrices, lambda x, y, a, causal: x.shape[0] >= 100 and y.shape[1] >= 50),
            (matrices, lambda x, y, a, causal: x.shape[1] % 8 == 0 and y.shape[1] % 32 == 0 and y.shape[0] == 1),
            (flat, lambda x: x.numel() % 64 == 0 and x.numel() > 0),
            (flat, lambda x: x.dim() == 2 and x.shape[1] % 4 == 0),
        ],
        0,
        6,
        10,
        11,
    ),
)
def test_sizes_are_found_and_vary(function, condition):
    found, good = taken(function, condition)
    contiguous = [c for c in found if c.layout == "contiguous"]
    assert len(good) >= 20
    assert len(good) / len(found) > 0.4
    assert len([c for c in contiguous if c in good]) / len(contiguous) > 0.4
    assert len({c.sizes for c in good}) >= 8


@pytest.mark.parametrize(
    ("function", "condition"),
    [
        (flat, lambda x: x.dtype is torch.bfloat16),
        (flat, lambda x: x.dim() == 2 and x.stride(-1) != 1),
        (matrices, lambda x, y, a, causal: a == 0),
        (matrices, lambda x, y, a, causal: not causal),
    ],
)
def test_a_dtype_a_layout_or_a_number_is_found(function, condition):
    _, good = taken(function, condition)
    assert len({c.sizes for c in good}) >= 8


def test_where_the_usual_sizes_are_taken_nothing_else_is_tried():
    assert taken(attention, lambda q, k: True)[0] == cases(contract_of(attention), "quick")


@pytest.mark.slow
def test_where_nothing_is_taken_the_usual_cases_remain_to_be_counted():
    found, good = taken(matrices, lambda x, y, a, causal: x.shape[0] == 12345)
    assert good == []
    assert len(found) > 50


def test_the_search_is_the_same_each_time():
    first, second = (taken(attention, lambda q, k: q.shape[3] in (64, 128))[0] for _ in range(2))
    assert first == second
