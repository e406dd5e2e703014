"""Triton kernels for a GPU that write too far, keep a state or leave the work to others; and right ones."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor

import opwright as ow


@triton.jit
def _double(x, out, n, IS_MASKED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = 2 * tl.load(x + at, mask=at < n, other=0.0)
    if IS_MASKED:
        tl.store(out + at, values, mask=at < n)
    else:
        tl.store(out + at, values)


@triton.jit
def _zero_at(x, n):
    tl.store(x + n, 0.0)


def double(x, out, *, masked=True):
    if x.numel():
        _double[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), IS_MASKED=masked, BLOCK=128)
    return out


@ow.op("on_gpu::twice")
def twice(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return 2 * x


_results: dict[object, Tensor] = {}
_scratch: dict[object, Tensor] = {}
_kept: list[Tensor] = []


@twice.triton(name="stores without a mask")
def _(x):
    x = x.contiguous()
    return double(x, x.new_empty(x.shape), masked=False)


@twice.triton(name="writes past its argument", when=lambda x: x.is_contiguous())
def _(x):
    out = double(x, x.new_empty(x.shape))
    if x.numel():
        _zero_at[(1,)](x, x.untyped_storage().nbytes() // x.element_size() - x.storage_offset())
    return out


@twice.triton(name="adds to scratch that it has not written")
def _(x):
    scratch = torch.empty(x.numel(), dtype=x.dtype, device=x.device)
    return double(x.contiguous(), x.new_empty(x.shape)) + (0 * scratch).nan_to_num(1.0)


@twice.triton(name="keeps results by address")
def _(x):
    key = (x.data_ptr(), x.shape, x.stride(), x.dtype)
    if key not in _results:
        _results[key] = double(x.contiguous(), x.new_empty(x.shape))
    return _results[key].clone()


@twice.triton(name="shares scratch between streams")
def _(x):
    key = (x.shape, x.dtype)
    if key not in _scratch:
        _scratch[key] = x.new_empty(x.shape)
    _scratch[key].copy_(x)
    for _ in range(20):
        _scratch[key].add_(0)
    return double(_scratch[key], x.new_empty(x.shape))


@twice.triton(name="leaks")
def _(x):
    _kept.append(x.new_empty(x.shape))
    return double(x.contiguous(), x.new_empty(x.shape))


@twice.triton(name="computes on the CPU")
def _(x):
    return (2 * x.cpu()).to(x.device)


@twice.triton(name="leaves it to torch")
def _(x):
    return 2 * x


# The check that finds it, and a part of its message.
WRONG = {
    "stores without a mask": ("memory", "memory past the end of output 0 was written"),
    "writes past its argument": ("memory", "memory past the end of argument 'x' was written"),
    "adds to scratch that it has not written": ("memory", "depend on memory that was never written"),
    "keeps results by address": ("repeated calls", "results are kept by address"),
    "shares scratch between streams": ("threads", "called by two threads at the same time"),
    "leaks": ("repeated calls", "memory grew by"),
    "computes on the CPU": ("own work", "it computes on the CPU"),
    "leaves it to torch": ("own work", "torch computes it within the kernel"),
}


@twice.triton(name="is right")
def _(x):
    x = x.contiguous()
    return double(x, x.new_empty(x.shape))


@twice.triton(name="has scratch of its own")
def _(x):
    scratch = torch.empty(triton.cdiv(x.numel(), 128) * 128, dtype=x.dtype, device=x.device)
    return double(x.contiguous(), scratch, masked=False)[: x.numel()]


RIGHT = [name for name in twice.kernels if name not in WRONG]


@triton.jit
def _add_up(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + at, mask=at < n, other=0.0)))


@ow.op("on_gpu::total")
def total(x: Float32[Tensor, " n"]) -> Float32[Tensor, ""]:
    return x.sum()


@total.triton(name="adds in any order")
def _(x):
    out = x.new_zeros(())
    if x.numel():
        _add_up[(triton.cdiv(x.numel(), 128),)](x.contiguous(), out, x.numel(), BLOCK=128)
    return out
