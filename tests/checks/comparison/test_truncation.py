"""Results that are cut off are told from those that are rounded, in one step or in several."""

from __future__ import annotations

import pytest
import torch

from opwright.checks.comparison.truncation import are_cut_off


def cut(x, dtype):
    bits = 16 if dtype is torch.bfloat16 else 13
    return ((x.view(torch.int32) >> bits) << bits).view(torch.float32).to(dtype)


def numbers():
    return torch.randn(4096, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cut_off(dtype):
    x = numbers().clamp(-3, 3)
    assert are_cut_off(cut(x, dtype), x.double())
    assert not are_cut_off(x.to(dtype), x.double())
    assert not are_cut_off(cut(x, dtype)[:100], x.double()[:100])


@pytest.mark.parametrize("share", [-(2**-9), -(2**-10), 2**-9])
def test_rounded_results_with_a_common_error_are_not_cut_off(share):
    x = numbers().double()
    assert not are_cut_off((x * (1 + share)).bfloat16(), x)


def test_exact_and_wide_results_are_not_cut_off():
    x = numbers().bfloat16()
    assert not are_cut_off(x, x.double())
    assert not are_cut_off(cut(numbers(), torch.bfloat16).float(), numbers().double())
