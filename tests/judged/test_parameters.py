"""Parameters of a candidate correspond to the reference's by name, by the value that a seed gives, or in order."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from opwright.errors import KernelError
from opwright.judged.calling.parameters import corresponding

ZEROS, ONES = torch.zeros(4), torch.ones(4)
A, B, C = (torch.arange(4.0) + n for n in (1, 2, 3))
WIDE = torch.ones(4, 2)
COUNTER = torch.tensor(0)
Tensors = dict[str, torch.Tensor]


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        ({"w": A, "b": B}, {"b": C, "w": ZEROS}, {"w": "w", "b": "b"}),
        ({"n_weight": A, "n_bias": B}, {"n.bias": A, "n.weight": B}, {"n_weight": "n.weight", "n_bias": "n.bias"}),
        # Of one shape, in another order: by value, as KernelBench's seed gives it.
        ({"linear_bias": A, "own": B}, {"bias": B, "matmul.bias": A}, {"linear_bias": "matmul.bias", "own": "bias"}),
        # Equal values: the first first.
        ({"x": ZEROS, "y": ZEROS, "z": ONES}, {"c": ONES, "a": ZEROS, "b": ZEROS}, {"x": "a", "y": "b", "z": "c"}),
        # Other values: in order.
        ({"x": A, "y": B}, {"a": ONES, "b": C}, {"x": "a", "y": "b"}),
        ({"x": A, "y": ONES}, {"a": ONES, "b": C}, {"x": "b", "y": "a"}),
        # A counter decides nothing; a constant stays; what a candidate does without is not asked for.
        ({"x": A}, {"a": ZEROS, "seen": COUNTER}, {"x": "a"}),
        ({"x": A, "table": WIDE}, {"a": A}, {"x": "a"}),
        ({"x": A}, {"a": A, "unused": B}, {"x": "a"}),
        ({}, {"a": A}, {}),
        # Of another shape: by value only, as a seed gives both the same numbers.
        ({"b": A, "w": WIDE}, {"b": A.reshape(4, 1, 1), "w": WIDE}, {"b": "b", "w": "w"}),
        # As bfloat16 what the reference has as float32, and without its scale.
        ({"w": A.bfloat16()}, {"w": B, "scale": ONES}, {"w": "w"}),
    ],
)
def test_they_correspond(own: Tensors, given: Tensors, expected: dict[str, str]) -> None:
    assert corresponding(own, given) == expected


@pytest.mark.parametrize(
    ("own", "given"),
    [
        ({"w": torch.ones(6, 1)}, {"w": torch.ones(1, 1)}),  # which would be broadcast
        ({"x": A, "y": WIDE}, {"a": WIDE + 1, "b": ZEROS}),
        ({"x": B}, {"a": ZEROS, "b": ONES}),
        ({"b": A}, {"b": B.reshape(4, 1, 1)}),  # in a shape of its own, and not what the seed gives
        ({"x": A.double()}, {"a": A, "b": A}),
        ({"w": A, "own": WIDE}, {"w": A, "scale": ONES}),
    ],
)
def test_what_does_not_correspond_is_an_error(own: Tensors, given: Tensors) -> None:
    with pytest.raises(KernelError, match=r"must have the reference's parameters and buffers, .* got"):
        corresponding(own, given)


def test_floats_of_a_byte_correspond_by_value() -> None:
    a, b = (t.to(torch.float8_e4m3fn) for t in (A, B))
    given = {"b": b, "a": a}
    assert corresponding({"x": a, "y": b}, given) == {"x": "a", "y": "b"}


@pytest.mark.gpu
def test_what_a_constructor_has_made_on_a_gpu_corresponds() -> None:
    given = {"b": B, "a": A}
    assert corresponding({"x": A.cuda(), "y": B.cuda()}, given) == {"x": "a", "y": "b"}


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matmul, self.bias = nn.Linear(3, 4), nn.Parameter(torch.randn(4))
        self.norm = nn.GroupNorm(2, 4)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        linear = nn.Linear(3, 4)
        self.weight, self.linear_bias = linear.weight, linear.bias
        self.custom_bias = nn.Parameter(torch.randn(4))
        self.norm = nn.GroupNorm(2, 4)


def test_modules_that_a_seed_constructs_alike_correspond() -> None:
    torch.manual_seed(42)
    reference = dict(Reference().named_parameters())
    torch.manual_seed(42)
    own = dict(Own().named_parameters())
    assert corresponding(own, reference) == {
        "weight": "matmul.weight",
        "linear_bias": "matmul.bias",
        "custom_bias": "bias",
        "norm.weight": "norm.weight",
        "norm.bias": "norm.bias",
    }
