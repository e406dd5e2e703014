"""Operators of attention and of mixtures of experts, written as a user would: each with a right and a wrong kernel."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Float32, Int32, Int64
from torch import Tensor

import opwright as ow
from tests.operators.faults import wrong

# -- flash attention, forward, with grouped queries and the logarithms of the sums ----------------------------------


@ow.op("stack::attention", where=["hq % hk == 0", "hk >= 1", "s >= 1", "d in (16, 32)"])
def attention(
    q: Float[Tensor, "b hq t d"], k: Float[Tensor, "b hk s d"], v: Float[Tensor, "b hk s d"], causal: bool = False
) -> tuple[Float[Tensor, "b hq t d"], Float32[Tensor, "b hq t"]]:
    groups = q.shape[1] // k.shape[1]
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    k, v = (x.to(wide).repeat_interleave(groups, 1) for x in (k, v))
    scores = q.to(wide) @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(_later(scores), -1e30)
    return (scores.softmax(-1) @ v).to(q.dtype), scores.logsumexp(-1).float()


def _later(scores):
    rows, columns = (torch.arange(n, device=scores.device) for n in scores.shape[-2:])
    return columns > rows[:, None]


@attention.python
def attention_in_tiles(q, k, v, causal):
    groups, scale, wide = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5, torch.promote_types(q.dtype, torch.float32)
    out = q.new_empty(q.shape)
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    rows = torch.arange(q.shape[2], device=q.device)[:, None]
    for head in range(q.shape[1]):
        most = torch.full(q[:, 0, :, :1].shape, -math.inf, dtype=wide, device=q.device)
        total, sums = torch.zeros_like(most), torch.zeros(q[:, 0].shape, dtype=wide, device=q.device)
        for start in range(0, k.shape[2], 16):
            keys, values = (x[:, head // groups, start : start + 16].to(wide) for x in (k, v))
            scores = q[:, head].to(wide) @ keys.mT * scale
            if causal:
                later = start + torch.arange(keys.shape[1], device=q.device) > rows
                scores = scores.masked_fill(later, -1e30)
            new = torch.maximum(most, scores.amax(-1, keepdim=True))
            weights, old = (scores - new).exp(), (most - new).exp()
            sums, total, most = sums * old + weights @ values, total * old + weights.sum(-1, keepdim=True), new
        out[:, head] = sums / total
        lse[:, head] = (most + total.log())[..., 0]
    return out, lse


@wrong(attention, "values")
def attention_with_interleaved_groups(q, k, v, causal):
    k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))  # the heads of a group do not lie together
    return attention_in_tiles(q, k, v, causal)


# -- softmax and dropout with a seed --------------------------------------------------------------------------------


@ow.op("stack::softmax_dropout", random="seed")
def softmax_dropout(
    x: Float[Tensor, "m n"], seed: int, p: Annotated[float, ow.values(0.1, 0.6)] = 0.1
) -> tuple[Float[Tensor, "m n"], Bool[Tensor, "m n"]]:
    keep = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)).to(x.device) >= p
    return torch.where(keep, x.softmax(-1) / (1 - p), 0), keep


@softmax_dropout.register_property
def what_is_kept_sums_up(x, p, result0, result1):
    expected = torch.where(result1, x.double().softmax(-1), 0).sum(-1) / (1 - p)
    torch.testing.assert_close(result0.double().sum(-1), expected, rtol=0.02, atol=0.02)


@softmax_dropout.python
def softmax_dropout_by_hashing(x, seed, p):
    """A counter-based generator: the bits of an element are a hash of its number and the seed."""
    bits = torch.arange(x.numel(), device=x.device) + (seed * 0x9E3779B97F4A7C15 & 0x3FFFFFFFFFFFFFFF)
    for shift, factor in ((30, 0x3F58476D1CE4E5B9), (27, 0x14D049BB133111EB), (31, 0x2545F4914F6CDD1D)):
        bits = (bits ^ (bits >> shift & (1 << 64 - shift) - 1)) * factor
    keep = ((bits >> 11 & (1 << 53) - 1).double() * 2.0**-53 >= p).view(x.shape)
    return torch.where(keep, x.softmax(-1) / (1 - p), 0), keep


@wrong(softmax_dropout, "values")
def softmax_dropout_repeats_the_mask_in_every_row(x, seed, p):
    keep = torch.rand(x.shape[1:], generator=torch.Generator().manual_seed(seed)).to(x.device) >= p
    keep = keep.expand(x.shape).contiguous()
    return torch.where(keep, x.softmax(-1) / (1 - p), 0), keep


# -- routing to the best experts, of which equal ones may be taken in any order --------------------------------------


@ow.op("stack::route", where="1 <= k <= e")
def route(
    scores: Float[Tensor, "t e"], k: Annotated[int, ow.values(1, 4)]
) -> tuple[Float[Tensor, "t k"], Annotated[Int64[Tensor, "t k"], ow.by_property]]:
    values, experts = scores.topk(k)
    return values.softmax(-1), experts


@route.register_property
def the_experts_have_the_weights(scores, result0, result1):
    torch.testing.assert_close(scores.gather(1, result1).softmax(-1), result0, rtol=1e-2, atol=1e-3)


@route.register_property
def the_experts_of_a_token_differ(result1):
    ordered = result1.sort(-1).values
    return ordered[:, 1:] != ordered[:, :-1]


@route.python
def route_by_sorting(scores, k):
    values, experts = scores.sort(dim=-1, descending=True, stable=True)
    return values[:, :k].softmax(-1), experts[:, :k].contiguous()


@wrong(route, "properties")
def route_from_the_end(scores, k):
    values, experts = scores.flip(-1).sort(dim=-1, descending=True)
    return values[:, :k].softmax(-1), experts[:, :k].contiguous()  # numbers of the flipped columns


# -- a matrix product for each expert, of tokens in order of their experts --------------------------------------------


@ow.op("stack::grouped_matmul", where="e >= 1")
def grouped_matmul(
    x: Float[Tensor, "t i"],
    weights: Float[Tensor, "e i o"],
    offsets: Annotated[Int32[Tensor, "e+1"], ow.inputs.offsets("t")],  # noqa: F821
) -> Float[Tensor, "t o"]:
    expert = torch.bucketize(torch.arange(x.shape[0], device=x.device), offsets[1:].contiguous(), right=True)
    return torch.einsum("ti,tio->to", x, weights[expert])


@grouped_matmul.python
def grouped_matmul_by_parts(x, weights, offsets):
    ends = offsets.tolist()
    return torch.cat([x[ends[i] : ends[i + 1]] @ w for i, w in enumerate(weights)])


@wrong(grouped_matmul, "values")
def grouped_matmul_skips_empty_experts(x, weights, offsets):
    parts = [x[i:j] for i, j in zip(offsets.tolist(), offsets.tolist()[1:], strict=False) if i < j]
    return torch.cat([part @ w for part, w in zip(parts, weights, strict=False)] or [x @ weights[0]])
