"""Rotary embedding: of the first dims or of all, by halves or by pairs, in place or not, in Triton."""

from typing import Annotated

import torch
from torch import Tensor

import opwright as ow
from opwright.gallery.llm.floats import Floats

__all__ = ["rope", "rope_"]


@ow.op("llm::rope", where="2*r <= d")
def rope(
    x: Floats[Tensor, "b h s d"],
    cos: Annotated[Floats[Tensor, "#b s r"], ow.no_gradient],
    sin: Annotated[Floats[Tensor, "#b s r"], ow.no_gradient],
    interleaved: bool = False,
) -> Floats[Tensor, "b h s d"]:
    """Turn pairs of numbers of each head by an angle: of the first 2·r, number i and r + i, or, interleaved, 2·i and
    2·i + 1. The others stay."""
    r = cos.shape[-1]
    turned = rotated(x[..., : 2 * r].float(), cos[:, None].float(), sin[:, None].float(), interleaved)
    return torch.cat((turned.to(x.dtype), x[..., 2 * r :]), -1)


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    r = cos.shape[-1]
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :r], x[..., r:])
    pairs = first * cos - second * sin, second * cos + first * sin
    return torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)


def keep_angles(ctx, inputs, output):
    _, cos, sin, ctx.interleaved = inputs
    ctx.save_for_backward(cos, sin)


def rope_gradient(ctx, grad):
    cos, sin = ctx.saved_tensors
    return rope(grad, cos, -sin, ctx.interleaved), None, None, None  # turned back


rope.register_autograd(rope_gradient, setup_context=keep_angles)
rope.triton("kernels/rope_triton.py", entry="rope")


@ow.op("llm::rope_", where="2*r <= d")
@torch.no_grad()
def rope_(
    x: Annotated[Floats[Tensor, "b h s d"], ow.mutated],
    cos: Floats[Tensor, "#b s r"],
    sin: Floats[Tensor, "#b s r"],
    interleaved: bool = False,
) -> None:
    """In place, without a gradient."""
    turned = rotated(x[..., : 2 * cos.shape[-1]].float(), cos[:, None].float(), sin[:, None].float(), interleaved)
    x[..., : 2 * cos.shape[-1]] = turned.to(x.dtype)


rope_.triton("kernels/rope_triton.py", entry="rope_")
rope.sizes(b=(4,), h=(32,), s=(2048,), d=(128,), r=(64,))
rope_.sizes(b=(4,), h=(32,), s=(2048,), d=(128,), r=(64,))
