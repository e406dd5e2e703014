"""Operators of a language model's stack, written as a user would: a contract, a right kernel, and a wrong one."""

from __future__ import annotations

import itertools
from typing import Annotated

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int8, Int32, Int64
from torch import Tensor

import opwright as ow
from tests.operators.faults import wrong

# -- RMSNorm that keeps the reciprocal of its root mean square ------------------------------------------------------


@ow.op("stack::rms_norm")
def rms_norm(
    x: Float[Tensor, "t d"], weight: Float[Tensor, " d"], eps: Annotated[float, ow.values(1e-6, 1e-3)] = 1e-6
) -> tuple[Float[Tensor, "t d"], Annotated[Float[Tensor, " t"], ow.saved_for_backward]]:
    rstd = torch.rsqrt(x.pow(2).mean(-1) + eps)
    return x * rstd[:, None] * weight, rstd


@rms_norm.python
def rms_norm_right(x, weight, eps):
    rstd = (x.float().pow(2).mean(-1) + eps).rsqrt().to(x.dtype) if x.dtype != torch.float64 else None
    rstd = (x.pow(2).mean(-1) + eps).rsqrt() if rstd is None else rstd
    return (x * rstd[:, None] * weight).contiguous(), rstd


@wrong(rms_norm, "values")
def rms_norm_without_eps(x, weight, eps):
    rstd = x.pow(2).mean(-1).rsqrt()
    return (x * rstd[:, None] * weight).contiguous(), (x.pow(2).sum(-1) + eps).rsqrt()


# -- residual add and RMSNorm, in place -----------------------------------------------------------------------------


@ow.op("stack::add_rms_norm")
def add_rms_norm(
    x: Annotated[Float[Tensor, "t d"], ow.mutated],
    residual: Annotated[Float[Tensor, "t d"], ow.mutated],
    weight: Float[Tensor, " d"],
    eps: Annotated[float, ow.values(1e-6, 1e-3)] = 1e-6,
) -> None:
    residual.add_(x)
    x.copy_(residual * torch.rsqrt(residual.pow(2).mean(-1, keepdim=True) + eps) * weight)


@add_rms_norm.python
def add_rms_norm_right(x, residual, weight, eps):
    residual += x
    x.copy_(F.rms_norm(residual, weight.shape, weight, eps))


@wrong(add_rms_norm, "values")
def add_rms_norm_forgets_the_residual(x, residual, weight, eps):
    x.copy_(F.rms_norm(residual + x, weight.shape, weight, eps))


# -- rotary embedding, in place -------------------------------------------------------------------------------------


@ow.op("stack::rope")
def rope(
    x: Annotated[Float[Tensor, "t h 2*k"], ow.mutated], cos: Float[Tensor, "t k"], sin: Float[Tensor, "t k"]
) -> None:
    first, second = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    c, s = cos[:, None], sin[:, None]
    x.copy_(torch.cat([first * c - second * s, second * c + first * s], -1))


@rope.python
def rope_right(x, cos, sin):
    half = x.shape[-1] // 2
    first, second = x[..., :half].clone(), x[..., half:].clone()
    x[..., :half] = first * cos[:, None] - second * sin[:, None]
    x[..., half:] = second * cos[:, None] + first * sin[:, None]


@wrong(rope, "values")
def rope_reads_what_it_has_written(x, cos, sin):
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    first.copy_(first * cos[:, None] - second * sin[:, None])
    second.copy_(second * cos[:, None] + first * sin[:, None])


# -- cross-entropy --------------------------------------------------------------------------------------------------


@ow.op("stack::cross_entropy")
def cross_entropy(
    logits: Float[Tensor, "t v"],
    labels: Annotated[Int64[Tensor, " t"], ow.values(0, "v-1", also=(-100,))],
    smoothing: Annotated[float, ow.values(0.0, 0.5)] = 0.0,
) -> Float[Tensor, " t"]:
    return F.cross_entropy(logits, labels, reduction="none", ignore_index=-100, label_smoothing=smoothing)


@cross_entropy.python
def cross_entropy_right(logits, labels, smoothing):
    logs = logits.log_softmax(-1)
    kept = labels != -100
    picked = logs.gather(1, torch.where(kept, labels, 0)[:, None])[:, 0]
    smooth = smoothing * logs.mean(-1) if smoothing else 0  # 0 times the mean is NaN where a logit is -inf
    return torch.where(kept, -(1 - smoothing) * picked - smooth, 0).contiguous()


@wrong(cross_entropy, "values")
def cross_entropy_counts_what_is_ignored(logits, labels, smoothing):
    logs = logits.log_softmax(-1)
    picked = logs.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return (-(1 - smoothing) * picked - smoothing * logs.mean(-1)).contiguous()


# -- a matrix product of int8 with scales ---------------------------------------------------------------------------


@ow.op("stack::int8_matmul")
def int8_matmul(
    x: Annotated[Int8[Tensor, "m k"], ow.values(-128, 127)],
    w: Annotated[Int8[Tensor, "k n"], ow.values(-128, 127)],
    x_scale: Float32[Tensor, " m"],
    w_scale: Float32[Tensor, " n"],
) -> Float32[Tensor, "m n"]:
    return (x.double() @ w.double() * x_scale[:, None] * w_scale).float()


@int8_matmul.python
def int8_matmul_right(x, w, x_scale, w_scale):
    return (x.int()[:, :, None] * w.int()).sum(1, dtype=torch.int32) * x_scale[:, None] * w_scale


@wrong(int8_matmul, "values")
def int8_matmul_overflows(x, w, x_scale, w_scale):
    return (x[:, :, None] * w).sum(1, dtype=torch.int32) * x_scale[:, None] * w_scale


# -- writing keys and values into a paged cache ---------------------------------------------------------------------


@ow.op("stack::write_cache")
def write_cache(
    key: Float[Tensor, "t h d"],
    value: Float[Tensor, "t h d"],
    key_cache: Annotated[Float[Tensor, "blocks size h d"], ow.mutated],
    value_cache: Annotated[Float[Tensor, "blocks size h d"], ow.mutated],
    slots: Annotated[Int64[Tensor, " t"], ow.values(0, "blocks*size-1", unique=True)],
) -> None:
    size = key_cache.shape[1]
    key_cache[slots // size, slots % size] = key
    value_cache[slots // size, slots % size] = value


@write_cache.python
def write_cache_right(key, value, key_cache, value_cache, slots):
    for i, slot in enumerate(slots.tolist()):
        block, place = divmod(slot, key_cache.shape[1])
        key_cache[block, place], value_cache[block, place] = key[i], value[i]


@wrong(write_cache, "values")
def write_cache_takes_the_cache_for_contiguous(key, value, key_cache, value_cache, slots):
    for cache, new in ((key_cache, key), (value_cache, value)):
        cache.reshape(-1, *cache.shape[2:])[slots] = new  # a copy, if it is not


# -- sums over sequences that lie one after another -----------------------------------------------------------------


@ow.op("stack::segment_sums")
def segment_sums(
    x: Float[Tensor, "t d"], offsets: Annotated[Int32[Tensor, " b"], ow.inputs.offsets("t")]
) -> Float[Tensor, "b-1 d"]:
    index = torch.bucketize(torch.arange(x.shape[0], device=x.device), offsets[1:].contiguous(), right=True)
    return x.new_zeros(offsets.shape[0] - 1, x.shape[1]).index_add(0, index, x)


@segment_sums.python
def segment_sums_right(x, offsets):
    ends = offsets.tolist()
    return torch.stack([x[i:j].sum(0) for i, j in itertools.pairwise(ends)]).contiguous()


@wrong(segment_sums, "values")
def segment_sums_forgets_empty_sequences(x, offsets):
    sizes = offsets.diff().tolist()
    sums = [part.sum(0) if len(part) else x[:1].sum(0) for part in x.split([int(s) for s in sizes])]
    return torch.stack(sums).contiguous()


# -- AdamW of several parameters, in place --------------------------------------------------------------------------


@ow.op("stack::adamw")
def adamw(
    weights: Annotated[list[Float[Tensor, "?n"]], ow.mutated],
    grads: list[Float[Tensor, "?n"]],
    means: Annotated[list[Float[Tensor, "?n"]], ow.mutated],
    squares: Annotated[list[Float[Tensor, "?n"]], ow.mutated, ow.values(0, 1)],
    rate: Annotated[float, ow.values(1e-4, 1e-1)],
) -> None:
    for weight, grad, mean, square in zip(weights, grads, means, squares, strict=True):
        mean.mul_(0.9).add_(grad, alpha=0.1)
        square.mul_(0.99).addcmul_(grad, grad, value=0.01)
        weight.mul_(1 - 0.01 * rate).sub_(rate * mean / (square.abs().sqrt() + 1e-3))


@adamw.python
def adamw_right(weights, grads, means, squares, rate):
    torch._foreach_lerp_(means, grads, 0.1)
    torch._foreach_mul_(squares, 0.99)
    torch._foreach_addcmul_(squares, grads, grads, 0.01)
    for weight, mean, square in zip(weights, means, squares, strict=True):
        weight.mul_(1 - 0.01 * rate).sub_(rate * mean / (square.abs().sqrt() + 1e-3))


@wrong(adamw, "values")
def adamw_updates_the_first_only(weights, grads, means, squares, rate):
    adamw_right(weights[:1], grads[:1], means[:1], squares[:1], rate)
