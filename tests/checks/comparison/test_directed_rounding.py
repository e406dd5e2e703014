"""Results that are rounded in one direction are told from those that are rounded to the nearest number."""

from __future__ import annotations

import pytest
import torch

from opwright.checks.comparison.directed_rounding import rounding_direction

DTYPES = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def numbers():
    return torch.randn(4096, generator=torch.Generator().manual_seed(0)).clamp(-3, 3).double()


def neighbours(x, dtype):
    """The largest number of the dtype that is not above each element, and the smallest that is not below."""
    unit = torch.ldexp(torch.full_like(x, torch.finfo(dtype).eps), torch.frexp(x).exponent - 1)
    return (x / unit).floor() * unit, (x / unit).ceil() * unit


def rounded(x, dtype, direction):
    below, above = neighbours(x, dtype)
    chosen = {
        "down": below,
        "up": above,
        "towards zero": torch.where(x > 0, below, above),
        "away from zero": torch.where(x > 0, above, below),
    }[direction]
    return chosen.to(dtype)


@pytest.mark.parametrize("direction", ["down", "up", "towards zero", "away from zero"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_direction_is_named(dtype, direction):
    x = numbers()
    assert rounding_direction(rounded(x, dtype, direction), x) == direction
    assert rounding_direction(rounded(x, dtype, direction)[:100], x[:100]) == "", "too few to tell"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_nearest_number_has_no_direction(dtype):
    x = numbers()
    assert rounding_direction(x.to(dtype), x) == ""


@pytest.mark.parametrize("share", [-(2**-9), -(2**-10), 2**-9, 2**-10])
def test_rounded_results_with_a_common_error_have_no_direction(share):
    x = numbers()
    assert rounding_direction((x * (1 + share)).bfloat16(), x) == ""


def test_exact_and_wide_results_have_no_direction():
    x = numbers().bfloat16()
    assert rounding_direction(x, x.double()) == ""
    assert rounding_direction(rounded(numbers(), torch.bfloat16, "down").float(), numbers()) == ""


def test_values_past_the_largest_number_have_no_direction():
    x = torch.linspace(449, 4096, 1000, dtype=torch.float64)
    assert rounding_direction(x.clamp(max=448).to(torch.float8_e4m3fn), x) == ""
