"""Decisions on exact numbers are the same in every right kernel; those on numbers that were computed are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from opwright.checks.comparison.tolerance import Computation

HALVES = torch.tensor([-2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 3.0])


def wrong(function, got, *arguments):
    computation = Computation(lambda a: [function(*a)], arguments, lambda i: 1, decides_exactly=True)
    return int(computation.wrong(0, got).sum())


def half_up(x):
    return (x + 0.5).floor()


@pytest.mark.parametrize(
    "before",
    [lambda x: x, lambda x: 2 * x - x, lambda x: x / 4 * 4, lambda x: x.reshape(2, 4).flip(0).flip(0).flatten()],
)
def test_a_tie_that_follows_exactly_is_decided(before):
    exact = before(HALVES).round()
    assert wrong(lambda x: before(x).round(), exact, HALVES) == 0
    assert wrong(lambda x: before(x).round(), half_up(before(HALVES)), HALVES) == 3


@pytest.mark.parametrize("before", [lambda x: x / 3 * 3, lambda x: x * 0.1 * 10, lambda x: (x.exp()).log()])
def test_a_tie_that_was_computed_may_be_decided_in_either_way(before):
    assert wrong(lambda x: before(x).round(), half_up(HALVES), HALVES) == 0


def test_a_division_by_what_is_no_power_of_two_may_be_a_product():
    step = torch.tensor([0.75])
    assert wrong(lambda x, s: (x / s).floor(), (HALVES * (1 - 1e-7)).floor(), HALVES * step, step) == 0


@pytest.mark.parametrize(
    ("function", "other"),
    [
        (lambda x: x > 0.5, lambda x: x >= 0.5),
        (lambda x: torch.where(x < 1.5, x, -x), lambda x: torch.where(x <= 1.5, x, -x)),
        (lambda x: (x - 0.5).sign(), lambda x: torch.where(x - 0.5 >= 0, 1.0, -1.0)),
        (lambda x: torch.bucketize(x, HALVES), lambda x: torch.bucketize(x, HALVES, right=True)),
        (lambda x: x.int(), lambda x: x.floor().int()),
        (lambda x: F.hardshrink(x, 0.5), lambda x: torch.where(x.abs() < 0.5, 0, x)),
        (lambda x: F.threshold(x, 0.5, 7.0), lambda x: torch.where(x >= 0.5, x, 7.0)),
        (lambda x: (x / 4 * 2).frac(), lambda x: x / 2 - (x / 2).round()),
    ],
)
def test_comparisons_and_conversions_are_decisions(function, other):
    assert wrong(function, function(HALVES), HALVES) == 0
    assert wrong(function, other(HALVES), HALVES) > 0


def test_of_equal_values_any_may_still_be_chosen():
    x = torch.tensor([[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]])
    assert wrong(lambda t: t.argmax(1), torch.tensor([2, 1]), x) == 0
    assert wrong(lambda t: t.argmax(1), torch.tensor([0, 1]), x) == 1


def test_what_is_written_in_place_is_not_taken_for_what_it_was():
    def function(x):
        y = x.clone()
        y[:4].exp_()
        return y.round()

    got = function(HALVES)
    assert wrong(function, got, HALVES) == 0


def places(x, count):
    return x.topk(count).indices


def test_each_of_equal_values_has_one_place():
    x = torch.randint(8, (64, 9)).float()
    right = x.sort(1, descending=True).indices[:, :4].clone()
    first = (x[:, None, :] == x.topk(4).values[:, :, None]).int().argmax(2)
    assert wrong(lambda t: places(t, 4), right, x) == 0
    assert wrong(lambda t: places(t, 4), first, x) > 0


def test_two_rows_may_have_the_nearest_at_one_place():
    x = torch.randint(3, (7, 4)).float()
    last = 3 - x.flip(1).argmax(1)
    assert wrong(lambda t: t.argmax(1), last, x) == 0


@pytest.mark.parametrize(
    ("function", "other"),
    [
        (torch.nn.functional.silu, lambda x: x * (0.5 * (0.5 * x).tanh() + 0.5)),
        (torch.nn.functional.gelu, lambda x: 0.5 * x * torch.erfc(-x * 0.5**0.5)),
        (torch.nn.functional.mish, lambda x: x * torch.nn.functional.softplus(x).tanh()),
    ],
)
def test_an_activation_may_be_off_by_a_share_of_its_argument(function, other):
    x = torch.linspace(-60, 60, 4001)
    assert wrong(function, other(x), x) == 0
    assert wrong(function, other(x) * (1 + 1e-4), x) > 1000


def test_the_sign_of_a_difference_of_equal_numbers_is_zero_beside_numbers_that_differ():
    p, q = torch.rand(40), torch.rand(40)
    q[::3] = p[::3]
    sides = torch.sign(p - q)
    assert wrong(lambda p, q: torch.sign(p - q), sides, p, q) == 0
    assert wrong(lambda p, q: torch.sign(p - q), torch.where(p == q, -0.5, sides), p, q) == 14
    assert wrong(lambda p, q: (p * q > 0.3).float(), (p * q > 0.3).float(), p, q) == 0


def test_a_rounding_of_what_is_not_exact_may_go_either_way_beside_one_that_is():
    x, y = torch.tensor([0.5, 1.1, 2.5]), torch.tensor([1.0, 2.2727273, 3.0])
    exact = torch.tensor([0.0, 2.0, 8.0])

    def rounded(x, y):
        return (x * y).round()

    assert wrong(rounded, exact + torch.tensor([0.0, 1.0, 0.0]), x, y) == 0  # 2.5 and a little
    assert wrong(rounded, exact + torch.tensor([1.0, 0.0, 0.0]), x, y) == 1
