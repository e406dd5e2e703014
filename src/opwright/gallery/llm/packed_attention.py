"""Attention of sequences of different lengths that are packed after each other: forward and backward, in Triton."""

from typing import Annotated

import torch
from jaxtyping import Float32, Int32
from torch import Tensor

import opwright as ow
from opwright.gallery.llm.attention import (
    FINITE,
    NEAR,
    SIZES,
    Scale,
    SoftCap,
    Window,
    gradients,
    grouped,
    has_positive_scale,
    scores_of,
    weights_of,
)
from opwright.gallery.llm.floats import Floats

__all__ = ["packed_attention", "packed_attention_backward"]

OffsetsOfQ = Annotated[Int32[Tensor, " n"], ow.inputs.offsets("s")]
OffsetsOfK = Annotated[Int32[Tensor, " n"], ow.inputs.offsets("t")]
SEQUENCES = ["2 <= n", *SIZES]


@ow.op("llm::packed_attention", where=SEQUENCES)
def packed_attention(
    q: Annotated[Floats[Tensor, "s hq d"], NEAR],
    k: Annotated[Floats[Tensor, "t hkv d"], NEAR],
    v: Annotated[Floats[Tensor, "t hkv d"], FINITE],
    cu_q: OffsetsOfQ,
    cu_k: OffsetsOfK,
    causal: bool = False,
    window: Window = 0,
    softcap: SoftCap = 0.0,
    scale: Scale | None = None,
) -> tuple[Floats[Tensor, "s hq d"], Annotated[Float32[Tensor, "hq s"], ow.saved_for_backward]]:
    """``attention`` of each sequence by itself: the i-th has the rows ``cu_q[i]`` to ``cu_q[i + 1]`` of q."""
    seen = in_own_band(cu_q, cu_k, q.shape[0], k.shape[0], causal, window)
    q4, k4, v4 = as_batch(q, k, v)
    scores = scores_of(q4, k4, seen, softcap, scale)
    lse = torch.logsumexp(scores, -1)
    out = weights_of(scores, lse) @ grouped(v4, q4)
    return out.squeeze(0).transpose(0, 1).to(q.dtype).contiguous(), lse.squeeze(0)


def as_batch(*tensors: Tensor) -> list[Tensor]:
    """One batch, its heads first."""
    return [x.transpose(0, 1)[None] for x in tensors]


def in_own_band(cu_q: Tensor, cu_k: Tensor, s: int, t: int, causal: bool, window: int) -> Tensor:
    """Which keys of all sequences the queries of all sequences see: some of their own."""
    of_q, at_q = places(cu_q, s)
    of_k, at_k = places(cu_k, t)
    longer = (cu_k.diff() - cu_q.diff())[of_q] if s else at_q
    distance = (at_q + longer)[:, None] - at_k
    seen = of_q[:, None] == of_k
    seen = seen & (distance >= 0) if causal else seen
    return seen & (distance.abs() < window) if window else seen


def places(offsets: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The sequence of each row, and its place there."""
    row = torch.arange(rows, device=offsets.device)
    sequence = torch.bucketize(row, offsets[1:].contiguous(), right=True)
    return sequence, row - offsets[sequence]


def drawn_lse(shape, generator, q, k, cu_q, cu_k, causal, window, softcap, scale):
    seen = in_own_band(cu_q, cu_k, q.shape[0], k.shape[0], causal, window)
    q, k = as_batch(q, k)
    return torch.logsumexp(scores_of(q, k, seen, softcap, scale), -1)[0].float()


@ow.op("llm::packed_attention_backward", where=SEQUENCES)
def packed_attention_backward(
    grad: Annotated[Floats[Tensor, "s hq d"], NEAR],
    q: Annotated[Floats[Tensor, "s hq d"], NEAR],
    k: Annotated[Floats[Tensor, "t hkv d"], NEAR],
    v: Annotated[Floats[Tensor, "t hkv d"], NEAR],
    out: Annotated[Floats[Tensor, "s hq d"], NEAR],
    lse: Annotated[Float32[Tensor, "hq s"], ow.inputs.drawn_by(drawn_lse)],
    cu_q: OffsetsOfQ,
    cu_k: OffsetsOfK,
    causal: bool = False,
    window: Window = 0,
    softcap: SoftCap = 0.0,
    scale: Scale | None = None,
) -> tuple[Floats[Tensor, "s hq d"], Floats[Tensor, "t hkv d"], Floats[Tensor, "t hkv d"]]:
    """The gradients of q, k and v."""
    seen = in_own_band(cu_q, cu_k, q.shape[0], k.shape[0], causal, window)
    grad, q, k, v, out = as_batch(grad, q, k, v, out)
    found = gradients(grad, q, k, v, out, lse[None], seen, softcap, scale)
    grad_q, grad_k, grad_v = (x[0].transpose(0, 1).contiguous() for x in found)
    return grad_q, grad_k, grad_v


def keep(ctx, inputs, output):
    q, k, v, cu_q, cu_k, ctx.causal, ctx.window, ctx.softcap, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output, cu_q, cu_k)


def gradient(ctx, grad):
    q, k, v, out, lse, cu_q, cu_k = ctx.saved_tensors
    options = ctx.causal, ctx.window, ctx.softcap, ctx.scale
    found = packed_attention_backward(grad, q, k, v, out, lse, cu_q, cu_k, *options)
    return *found, None, None, None, None, None, None


packed_attention.register_autograd(gradient, setup_context=keep)
packed_attention.triton("kernels/attention_triton.py", entry="packed_attention", when=has_positive_scale)
packed_attention_backward.triton(
    "kernels/attention_triton.py", entry="packed_attention_backward", when=has_positive_scale
)
for operator in (packed_attention, packed_attention_backward):
    operator.sizes(s=(16_384,), t=(16_384,), n=(9,), hq=(32,), hkv=(8,), d=(64, 128))


@packed_attention.samples
def batches():
    """Of lengths as in training, and of queries that continue sequences, with an empty one."""
    for lengths, earlier in (((5, 40, 0, 19), (0, 0, 0, 0)), ((1, 3, 1), (33, 70, 0))):
        cu_q = torch.tensor((0, *lengths)).cumsum(0).int()
        cu_k = cu_q + torch.tensor((0, *earlier)).cumsum(0).int()
        q, k, v = torch.randn(int(cu_q[-1]), 4, 16), *torch.randn(2, int(cu_k[-1]), 2, 16)
        yield q, k, v, cu_q, cu_k, True, 7, 0.0, None
        yield q, k, v, cu_q, cu_k, False, 0, 0.0, 0.3
