"""gallery.llm: operators of a server agree with plain code, and keep what they promise."""

from __future__ import annotations

import pytest
import torch

from opwright.gallery import llm


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# -- quantisation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantize", [llm.quantize_int8, llm.quantize_fp8])
@pytest.mark.parametrize("block", [128, 1 << 20])
def test_quantised_values_are_near_and_use_the_whole_range(quantize, block):
    x = random(5, 300)
    x[1] = 0
    values, scales = quantize(x, block)
    of_columns = scales.repeat_interleave(min(block, 300), 1)[:, :300]
    assert scales.shape == (5, -(-300 // block))
    assert (values.float() * of_columns - x).abs().le(of_columns * (0.51 if values.dtype == torch.int8 else 17)).all()
    largest = values.float().abs().amax(1)
    assert largest.tolist() == [0.0 if row == 1 else {torch.int8: 127.0}.get(values.dtype, 448.0) for row in range(5)]


@pytest.mark.parametrize("quantize", [llm.quantize_int8, llm.quantize_fp8])
def test_products_of_quantised_matrices_are_near(quantize):
    a, b = random(40, 300), random(200, 300, seed=1)
    (left, of_rows), (right, of_channels) = quantize(a, 1 << 20), quantize(b, 1 << 20)
    exact = a @ b.t()
    near = {"rtol": 0.05, "atol": 0.05 * exact.std().item() * 4}
    torch.testing.assert_close(llm.scaled_mm(left, right, of_rows[:, 0], of_channels[:, 0]).float(), exact, **near)
    left, of_rows = quantize(a, 128)
    blocks = torch.nn.functional.pad(b, (0, 84, 0, 56)).reshape(2, 128, 3, 128).transpose(1, 2).reshape(6, -1)
    right, of_blocks = quantize(blocks, 1 << 20)
    right = right.reshape(2, 3, 128, 128).transpose(1, 2).reshape(256, 384)[:200, :300]
    found = llm.block_scaled_mm(left, right, of_rows, of_blocks.reshape(2, 3))
    torch.testing.assert_close(found.float(), exact, **near)
