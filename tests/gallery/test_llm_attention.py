"""gallery.llm's attention: values and gradients are those of torch's own functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opwright.gallery import llm


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def assert_same(ours, theirs, *inputs):
    """Of two results, and of the gradients of what they come from."""
    torch.testing.assert_close(ours, theirs)
    above = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(9))
    for mine, other in zip(*(torch.autograd.grad(y, inputs, above) for y in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def attention(q, k, v, *options, **named):
    """With heads before tokens, as torch has them."""
    return llm.attention(*(x.transpose(1, 2) for x in (q, k, v)), *options, **named).transpose(1, 2)


def inputs(s: int, t: int) -> tuple[Tensor, Tensor, Tensor]:
    return random(2, 4, s, 16), random(2, 2, t, 16, seed=1), random(2, 2, t, 16, seed=2)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_torch_s(causal):
    q, k, v = inputs(9, 9)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.3, enable_gqa=True)
    assert_same(attention(q, k, v, causal, scale=0.3), theirs, q, k, v)


def test_the_last_query_is_at_the_last_key():
    q, k, v = inputs(3, 9)
    seen = torch.ones(3, 9, dtype=torch.bool).tril(6)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    assert_same(attention(q, k, v, True), theirs, q, k, v)


def test_a_window_is_the_distance_that_is_not_seen():
    q, k, v = inputs(9, 9)
    near = torch.ones(9, 9, dtype=torch.bool).tril(2).triu(-2)
    for causal, seen in ((False, near), (True, near.tril())):
        theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        assert_same(attention(q, k, v, causal, 3), theirs, q, k, v)


def test_a_soft_cap_comes_before_the_mask():
    q, k, v = inputs(9, 9)
    scores = 5 * torch.tanh(q @ k.repeat_interleave(2, 1).mT / 4 / 5)
    scores = scores.masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), -torch.inf)
    theirs = scores.softmax(-1) @ v.repeat_interleave(2, 1)
    assert_same(attention(q, k, v, True, softcap=5.0), theirs, q, k, v)


def test_a_query_without_keys_gives_zeros():
    q, k, v = inputs(5, 3)
    out = attention(q, k, v, True)
    assert (out[:, :, :2] == 0).all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


def test_packed_sequences_are_attended_each_by_itself():
    q, k, v = random(12, 4, 16), random(15, 2, 16, seed=1), random(15, 2, 16, seed=2)
    cu_q, cu_k = torch.tensor([0, 5, 5, 12], dtype=torch.int32), torch.tensor([0, 5, 6, 15], dtype=torch.int32)
    parts = [
        llm.attention(*(x[a:b][None] for x, (a, b) in zip((q, k, v), at, strict=True)), True, 4)
        for at in (((0, 5), (0, 5), (0, 5)), ((5, 12), (6, 15), (6, 15)))
    ]
    theirs = torch.cat([part[0] for part in parts])
    assert_same(llm.packed_attention(q, k, v, cu_q, cu_k, True, 4), theirs, q, k, v)


def cache_of(lengths: list[int], page: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Tokens of sequences, written into pages in another order; what no sequence has written is NaN."""
    keys, values = random(sum(lengths), 2, 16).detach(), random(sum(lengths), 2, 16, seed=1).detach()
    pages = max(-(-n // page) for n in lengths)
    table = torch.randperm(len(lengths) * pages, generator=torch.Generator().manual_seed(2)).view(len(lengths), -1)
    slots = [int(table[i, j // page]) * page + j % page for i, n in enumerate(lengths) for j in range(n)]
    k_cache, v_cache = torch.full((2, table.numel(), page, 2, 16), torch.nan)
    llm.reshape_and_cache_(keys, values, k_cache, v_cache, torch.tensor(slots))
    return keys, values, k_cache, v_cache, table.int()


@pytest.mark.parametrize("window", [0, 5])
def test_attention_to_pages_is_that_of_packed_sequences(window):
    lengths = [7, 0, 20, 4]
    keys, values, k_cache, v_cache, table = cache_of(lengths, 4)
    q, cu_k = random(4, 4, 16).detach(), torch.tensor([0, *lengths]).cumsum(0).int()
    theirs = llm.packed_attention(q, keys, values, torch.arange(5).int(), cu_k, True, window, 9.0)
    ours = llm.paged_attention(q, k_cache, v_cache, table, torch.tensor(lengths).int(), window, 9.0)
    torch.testing.assert_close(ours, theirs)


def test_a_token_without_a_slot_is_not_kept():
    k, v, caches = random(3, 2, 4).detach(), random(3, 2, 4, seed=1).detach(), torch.zeros(2, 5, 3, 2, 4)
    llm.reshape_and_cache_(k, v, caches[0], caches[1], torch.tensor([14, -1, 3]))
    assert torch.equal(caches[0, 4, 2], k[0])
    assert torch.equal(caches[1, 1, 0], v[2])
    assert int((caches != 0).any(-1).any(-1).sum()) == 4
