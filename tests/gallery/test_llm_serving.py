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


# -- sampling ----------------------------------------------------------------------------------------------------


def sampled(logits, top_k=1 << 20, top_p=1.0, min_p=0.0, temperature=1.0, count=4000):
    """How often each token comes, with as many seeds."""
    v = len(logits)
    same = (torch.full((count,), float(number)) for number in (temperature, top_p, min_p))
    temperatures, top_ps, min_ps = same
    top_ks = torch.full((count,), min(top_k, v), dtype=torch.int32)
    tokens = llm.sample(logits.expand(count, v), torch.arange(count), temperatures, top_ks, top_ps, min_ps)
    return torch.bincount(tokens, minlength=v) / count


SHARES = torch.tensor([0.05, 0.4, 0.1, 0.25, 0.2])


def test_tokens_come_as_often_as_their_shares():
    torch.testing.assert_close(sampled(SHARES.log()), SHARES, rtol=0, atol=0.03)
    squared = SHARES.square() / SHARES.square().sum()
    torch.testing.assert_close(sampled(SHARES.log(), temperature=0.5), squared, rtol=0, atol=0.03)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"top_k": 2}, [1, 3]),
        ({"top_p": 0.64}, [1, 3]),  # 0.4 is less, so the next one is kept, too
        ({"top_p": 0.66}, [1, 3, 4]),
        ({"top_k": 3, "top_p": 0.6}, [1, 3]),  # of 0.85
        ({"min_p": 0.3}, [1, 3, 4]),
        ({"top_k": 1}, [1]),
    ],
)
def test_only_kept_tokens_are_sampled(limits, kept):
    found = sampled(SHARES.log(), **limits)
    expected = torch.zeros(5).index_copy(0, torch.tensor(kept), SHARES[kept] / SHARES[kept].sum())
    assert found.nonzero().flatten().tolist() == kept
    torch.testing.assert_close(found, expected, rtol=0, atol=0.03)


def test_a_row_s_token_depends_on_its_seed_and_not_on_its_batch():
    logits, seeds = random(6, 50), torch.tensor([3, 1, 4, 1, 5, 9])
    others = torch.ones(6), torch.full((6,), 50, dtype=torch.int32), torch.ones(6), torch.zeros(6)
    together = llm.sample(logits, seeds, *others)
    alone = [llm.sample(logits[i : i + 1], seeds[i : i + 1], *(o[:1] for o in others)) for i in range(6)]
    assert torch.equal(together, torch.cat(alone))
