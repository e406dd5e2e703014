"""Rotary embedding: of the first dims or of all, by halves or by pairs, in place or not, in Triton."""

from typing import Annotated

import torch
from jaxtyping import Int64
from torch import Tensor

import opwright as ow
from opwright.gallery.llm.floats import Floats

__all__ = ["rope", "rope_", "rope_at", "rope_at_"]


@ow.op("llm::rope", where="2*r <= d")
def rope(
    x: Floats[Tensor, "b s h d"],
    cos: Annotated[Floats[Tensor, "#b s r"], ow.no_gradient],
    sin: Annotated[Floats[Tensor, "#b s r"], ow.no_gradient],
    interleaved: bool = False,
) -> Floats[Tensor, "b s h d"]:
    """Turn pairs of numbers of each head by an angle: of the first 2·r, number i and r + i, or, interleaved, 2·i and
    2·i + 1. The others stay."""
    r = cos.shape[-1]
    turned = rotated(x[..., : 2 * r].float(), cos[:, :, None].float(), sin[:, :, None].float(), interleaved)
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
    x: Annotated[Floats[Tensor, "b s h d"], ow.mutated],
    cos: Floats[Tensor, "#b s r"],
    sin: Floats[Tensor, "#b s r"],
    interleaved: bool = False,
) -> None:
    """In place, without a gradient."""
    turned = rotated(x[..., : 2 * cos.shape[-1]].float(), cos[:, :, None].float(), sin[:, :, None].float(), interleaved)
    x[..., : 2 * cos.shape[-1]] = turned.to(x.dtype)


rope_.triton("kernels/rope_triton.py", entry="rope_")


# -- with tables of all positions --------------------------------------------------------------------------------

Positions = Annotated[Int64[Tensor, "#b s"], ow.values(0, "p-1")]


@ow.op("llm::rope_at", where=["2*r <= d", "1 <= p"])
def rope_at(
    x: Floats[Tensor, "b s h d"],
    cos: Annotated[Floats[Tensor, "p r"], ow.no_gradient],
    sin: Annotated[Floats[Tensor, "p r"], ow.no_gradient],
    positions: Positions,
    interleaved: bool = False,
) -> Floats[Tensor, "b s h d"]:
    """``rope`` with the angles of each token's position, from tables."""
    turned = at_positions(x, cos, sin, positions, interleaved)
    return torch.cat((turned, x[..., turned.shape[-1] :]), -1)


@ow.op("llm::rope_at_", where=["2*r <= d", "1 <= p"])
@torch.no_grad()
def rope_at_(
    x: Annotated[Floats[Tensor, "b s h d"], ow.mutated],
    cos: Floats[Tensor, "p r"],
    sin: Floats[Tensor, "p r"],
    positions: Positions,
    interleaved: bool = False,
) -> None:
    """In place, without a gradient."""
    x[..., : 2 * cos.shape[-1]] = at_positions(x, cos, sin, positions, interleaved)


def at_positions(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    cos, sin = (table[positions][:, :, None].float() for table in (cos, sin))
    return rotated(x[..., : 2 * cos.shape[-1]].float(), cos, sin, interleaved).to(x.dtype)


def keep_tables(ctx, inputs, output):
    _, cos, sin, positions, ctx.interleaved = inputs
    ctx.save_for_backward(cos, sin, positions)


def rope_at_gradient(ctx, grad):
    cos, sin, positions = ctx.saved_tensors
    return rope_at(grad, cos, -sin, positions, ctx.interleaved), None, None, None, None


rope_at.register_autograd(rope_at_gradient, setup_context=keep_tables)
rope_at.triton("kernels/rope_triton.py", entry="rope_at")
rope_at_.triton("kernels/rope_triton.py", entry="rope_at_")

SIZES = {"b": (4,), "h": (32,), "s": (2048,), "d": (128,), "r": (64,)}
rope.sizes(**SIZES)
rope_.sizes(**SIZES)
rope_at.sizes(**SIZES, p=(8192,))
rope_at_.sizes(**SIZES, p=(8192,))
