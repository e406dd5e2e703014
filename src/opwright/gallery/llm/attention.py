"""Attention with grouped heads, a causal mask, a sliding window and a soft cap: forward and backward, in Triton."""

from typing import Annotated

import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.gallery.llm.floats import Floats

__all__ = ["attention", "attention_backward"]

Window = Annotated[int, ow.values(one_of=(0, 2, 7, 40))]
SoftCap = Annotated[float, ow.values(one_of=(0.0, 5.0, 30.0))]
Scale = Annotated[float, ow.values(0.05, 1.0)]
FINITE = ow.values(finite=True)  # a kernel does not read what a mask hides
# Weights follow from differences of scores, of which float32 has seven digits; float16 has products up to 65,504.
NEAR = ow.values(-4, 4)
SIZES = ["1 <= hkv", "1 <= hq", "hq % hkv == 0", "d in (16, 64, 128, 256)"]


@ow.op("llm::attention", where=SIZES)
def attention(
    q: Annotated[Floats[Tensor, "b s hq d"], NEAR],
    k: Annotated[Floats[Tensor, "b t hkv d"], NEAR],
    v: Annotated[Floats[Tensor, "b t hkv d"], FINITE],
    causal: bool = False,
    window: Window = 0,
    softcap: SoftCap = 0.0,
    scale: Scale | None = None,
) -> tuple[Floats[Tensor, "b s hq d"], Annotated[Float32[Tensor, "b hq s"], ow.saved_for_backward]]:
    """Flash attention. Each ``hq / hkv`` heads of q share a head of k and v. The scale is ``1 / sqrt(d)`` by default.
    Heads come after tokens, as linear layers give them: so no copy is needed before or after.

    Query i is at position ``t - s + i``. With ``causal`` it sees no later key, and with a window only keys at a
    distance of less than that. ``softcap`` replaces a score x by ``softcap · tanh(x / softcap)``. The result of a query
    that sees no key is 0.
    """
    q, k, v = heads_first(q, k, v)
    seen = in_band(positions(q, k), k.shape[2], causal, window)
    scores = scores_of(q, k, seen, softcap, scale)
    lse = torch.logsumexp(scores, -1)
    return (weights_of(scores, lse) @ grouped(v, q)).transpose(1, 2).to(q.dtype), lse


def heads_first(*tensors: Tensor) -> list[Tensor]:
    return [x.transpose(1, 2) for x in tensors]


def positions(q: Tensor, k: Tensor) -> Tensor:
    return torch.arange(q.shape[2], device=q.device) + (k.shape[2] - q.shape[2])


def in_band(at: Tensor, keys: int, causal: bool, window: int) -> Tensor:
    """Which keys the queries at some positions see."""
    distance = at[:, None] - torch.arange(keys, device=at.device)
    seen = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    return seen & (distance.abs() < window) if window else seen


def grouped(x: Tensor, q: Tensor) -> Tensor:
    """The heads of k or v in float32, once for each head of q."""
    return x.float().repeat_interleave(q.shape[1] // x.shape[1], 1)


def scores_of(q: Tensor, k: Tensor, seen: Tensor, softcap: float, scale: float | None) -> Tensor:
    scores = q.float() @ grouped(k, q).mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    return scores.masked_fill(~seen, -torch.inf)


def weights_of(scores: Tensor, lse: Tensor) -> Tensor:
    return torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0)[..., None])  # 0 in a row without keys


def drawn_lse(shape, generator, q, k, causal, window, softcap, scale):
    """As the forward gives it: with another one, weights are far from those of any attention."""
    q, k = heads_first(q, k)
    seen = in_band(positions(q, k), k.shape[2], causal, window)
    return torch.logsumexp(scores_of(q, k, seen, softcap, scale), -1).float()


@ow.op("llm::attention_backward", where=SIZES)
def attention_backward(
    grad: Annotated[Floats[Tensor, "b s hq d"], NEAR],
    q: Annotated[Floats[Tensor, "b s hq d"], NEAR],
    k: Annotated[Floats[Tensor, "b t hkv d"], NEAR],
    v: Annotated[Floats[Tensor, "b t hkv d"], NEAR],
    out: Annotated[Floats[Tensor, "b s hq d"], NEAR],
    lse: Annotated[Float32[Tensor, "b hq s"], ow.inputs.drawn_by(drawn_lse)],
    causal: bool = False,
    window: Window = 0,
    softcap: SoftCap = 0.0,
    scale: Scale | None = None,
) -> tuple[Floats[Tensor, "b s hq d"], Floats[Tensor, "b t hkv d"], Floats[Tensor, "b t hkv d"]]:
    """The gradients of q, k and v, from the result and the logarithms of the sums."""
    grad, q, k, v, out = heads_first(grad, q, k, v, out)
    seen = in_band(positions(q, k), k.shape[2], causal, window)
    grad_q, grad_k, grad_v = heads_first(*gradients(grad, q, k, v, out, lse, seen, softcap, scale))
    return grad_q, grad_k, grad_v


def gradients(grad, q, k, v, out, lse, seen, softcap, scale):
    scores = scores_of(q, k, seen, softcap, scale)
    weights, above = weights_of(scores, lse), grad.float()
    delta = (above * out.float()).sum(-1, keepdim=True)
    change = weights * (above @ grouped(v, q).mT - delta) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap > 0:
        change = change * (1 - (scores.masked_fill(~seen, 0) / softcap).square())
    grad_q = change @ grouped(k, q)
    grad_k, grad_v = (x.unflatten(1, (k.shape[1], -1)).sum(2) for x in (change.mT @ q.float(), weights.mT @ above))
    return grad_q.to(q.dtype), grad_k.to(q.dtype), grad_v.to(q.dtype)


def keep(ctx, inputs, output):
    q, k, v, ctx.causal, ctx.window, ctx.softcap, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output)


def gradient(ctx, grad):
    q, k, v, out, lse = ctx.saved_tensors
    found = attention_backward(grad, q, k, v, out, lse, ctx.causal, ctx.window, ctx.softcap, ctx.scale)
    return *found, None, None, None, None


def has_positive_scale(*arguments) -> bool:
    """Whether kernels can multiply the largest score by the scale, rather than each score."""
    return arguments[-1] is None or arguments[-1] > 0


attention.register_autograd(gradient, setup_context=keep)
attention.triton("kernels/attention_triton.py", entry="attention", when=has_positive_scale)
attention_backward.triton("kernels/attention_triton.py", entry="attention_backward", when=has_positive_scale)
for operator in (attention, attention_backward):
    operator.sizes(b=(4,), hq=(32,), hkv=(8,), s=(4096,), t=(4096,), d=(64, 128))
