"""Experts: routes in registers, a stable sort by counting, moves of rows, and a product for each expert in tiles."""

import torch
import triton
import triton.language as tl

from opwright.gallery.llm.floats import float32_like, row_launch, rows_of

CHUNK = 128  # pairs of a token and an expert that a program of the sort compares with one another


@triton.jit
def route_kernel(
    logits, weights, experts, t, e, k, stride, RENORMALISED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < t)[:, None] & (column < e)
    left = tl.load(logits + row[:, None] * stride + column, mask=inside, other=-float("inf")).to(tl.float32)
    largest = tl.max(left, 1)
    largest = tl.where(row < t, largest, 0)
    total = tl.sum(tl.where(inside, tl.exp(left - largest[:, None]), 0), 1)
    if RENORMALISED:
        rest, total = left, tl.zeros((ROWS,), tl.float32)
        for _ in range(k):
            total += tl.exp(tl.max(rest, 1) - largest)
            rest = tl.where(column == tl.argmax(rest, 1)[:, None], -float("inf"), rest)
    for j in range(k):
        value, expert = tl.max(left, 1), tl.argmax(left, 1)
        tl.store(weights + row * k + j, tl.exp(value - largest) / total, mask=row < t)
        tl.store(experts + row * k + j, expert, mask=row < t)
        left = tl.where(column == expert[:, None], -float("inf"), left)


def route(logits: torch.Tensor, k: int, renormalised: bool) -> tuple[torch.Tensor, torch.Tensor]:
    t, e = logits.shape
    weights, experts = float32_like(logits, t, k), torch.empty((t, k), dtype=torch.int32, device=logits.device)
    if t:
        logits, block = rows_of(logits), triton.next_power_of_2(int(e))
        rows = max(1024 // block, 1)
        route_kernel[(triton.cdiv(t, rows),)](
            logits, weights, experts, t, e, k, logits.stride(0), RENORMALISED=renormalised, ROWS=rows, BLOCK=block
        )
    return weights, experts


# -- the sort ----------------------------------------------------------------------------------------------------


@triton.jit
def count_kernel(experts, counts, pairs, count, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    pair = tl.program_id(0).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    expert = tl.load(experts + pair, mask=pair < pairs, other=0)
    found = tl.histogram(expert, BLOCK, mask=pair < pairs)
    column = tl.arange(0, BLOCK)
    tl.store(counts + tl.program_id(0).to(tl.int64) * count + column, found, mask=column < count)


@triton.jit
def place_kernel(experts, starts, places, order, pairs, count, CHUNK: tl.constexpr):
    within = tl.arange(0, CHUNK)
    pair = tl.program_id(0).to(tl.int64) * CHUNK + within
    expert = tl.load(experts + pair, mask=pair < pairs, other=-1)
    others = tl.load(experts + pair, mask=pair < pairs, other=-1)
    before = (expert[:, None] == others[None, :]) & (within[:, None] > within[None, :])
    start = tl.load(starts + tl.program_id(0).to(tl.int64) * count + expert, mask=pair < pairs, other=0)
    place = start + tl.sum(before.to(tl.int32), 1)
    tl.store(places + pair, place, mask=pair < pairs)
    tl.store(order + place, pair.to(tl.int32), mask=pair < pairs)


def sort_by_expert(experts: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    experts, pairs = experts.contiguous(), experts.numel()
    places, order = torch.empty_like(experts), experts.new_empty(pairs)
    chunks = triton.cdiv(pairs, CHUNK)
    counts, offsets = experts.new_empty((chunks, count)), experts.new_zeros(count + 1)
    if pairs:
        count_kernel[(chunks,)](experts, counts, pairs, count, CHUNK=CHUNK, BLOCK=max(triton.next_power_of_2(count), 2))
        until = counts.cumsum(0, dtype=torch.int32)  # of each expert, in this chunk and those before it
        torch.cumsum(until[-1], 0, dtype=torch.int32, out=offsets[1:])
        place_kernel[(chunks,)](experts, offsets[:-1] + until - counts, places, order, pairs, count, CHUNK=CHUNK)
    return places, order, offsets


# -- rows to their experts and back ------------------------------------------------------------------------------


@triton.jit
def permute_kernel(x, places, out, d, k, stride, BLOCK: tl.constexpr):
    across = tl.cdiv(d, BLOCK)
    row = (tl.program_id(0) // across).to(tl.int64)
    column = tl.program_id(0) % across * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + column, mask=column < d)
    for j in range(k):
        place = tl.load(places + row * k + j).to(tl.int64)
        tl.store(out + place * d + column, values, mask=column < d)


@triton.jit
def combine_kernel(y, weights, places, out, d, k, stride, BLOCK: tl.constexpr):
    across = tl.cdiv(d, BLOCK)
    row = (tl.program_id(0) // across).to(tl.int64)
    column = tl.program_id(0) % across * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for j in range(k):
        place = tl.load(places + row * k + j).to(tl.int64)
        values = tl.load(y + place * stride + column, mask=column < d, other=0).to(tl.float32)
        total += tl.load(weights + row * k + j) * values
    tl.store(out + row * d + column, total, mask=column < d)


@triton.jit
def combine_backward_kernel(
    grad, y, weights, places, grad_y, grad_weights, d, k, grad_stride, stride, BLOCK: tl.constexpr
):
    pair, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    place, weight = tl.load(places + pair).to(tl.int64), tl.load(weights + pair)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, d, BLOCK):
        at = start + column
        above = tl.load(grad + pair // k * grad_stride + at, mask=at < d, other=0).to(tl.float32)
        total += above * tl.load(y + place * stride + at, mask=at < d, other=0).to(tl.float32)
        tl.store(grad_y + place * d + at, weight * above, mask=at < d)
    tl.store(grad_weights + pair, tl.sum(total, 0))


def permute(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    (t, k), d = places.shape, x.shape[1]
    out = torch.empty((t * k, d), dtype=x.dtype, device=x.device)
    if out.numel():
        x = rows_of(x)
        permute_kernel[(t * triton.cdiv(d, 2048),)](x, places.contiguous(), out, d, k, x.stride(0), BLOCK=2048)
    return out


def combine(y: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    (t, k), d = places.shape, y.shape[1]
    out = torch.empty((t, d), dtype=y.dtype, device=y.device)
    if out.numel():
        y = y if y.stride(1) == 1 else y.contiguous()
        combine_kernel[(t * triton.cdiv(d, 1024),)](
            y, weights.contiguous(), places.contiguous(), out, d, k, y.stride(0), BLOCK=1024
        )
    return out


def combine_backward(
    grad: torch.Tensor, y: torch.Tensor, weights: torch.Tensor, places: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    (t, k), d = places.shape, y.shape[1]
    grad_y, grad_weights = torch.empty(y.shape, dtype=y.dtype, device=y.device), float32_like(y, t, k)
    if t and k:
        above, y = (m if m.stride(1) == 1 else m.contiguous() for m in (grad, y))
        combine_backward_kernel[(t * k,)](
            above, y, weights.contiguous(), places.contiguous(), grad_y, grad_weights, d, k, above.stride(0),
            y.stride(0), BLOCK=min(row_launch(d)["BLOCK"], 2048),
        )  # fmt: skip
    return grad_y, grad_weights


# -- a product for each expert -----------------------------------------------------------------------------------


@triton.jit
def tile_of(expert, begin, end, e, at, BM: tl.constexpr):
    # The expert of a tile of rows, where the tile begins and where the expert's rows end. Past the last one, no rows.
    # It takes numbers: torch.compile takes a pointer that a function gets for one that the kernel writes through, if
    # what the function returns is part of an address.
    tiles = (end - begin + BM - 1) // BM
    until = tl.cumsum(tiles, 0)
    own = tl.sum((until <= at).to(tl.int32), 0)
    is_own = expert == own
    before = tl.sum(tl.where(is_own, until - tiles, 0), 0)
    first = tl.sum(tl.where(is_own, begin, 0), 0) + (at - before) * BM
    return own, tl.where(own < e, first, 0), tl.sum(tl.where(is_own, end, 0), 0)


@triton.jit
def grouped_kernel(
    x, weights, offsets, out, tiles, n, d, e, x_stride, w_expert, w_row, w_step,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, E: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(n, BN)
    above = tl.program_id(0) // (TOGETHER * across) * TOGETHER
    together = min(tiles - above, TOGETHER)
    within = tl.program_id(0) % (TOGETHER * across)
    every = tl.arange(0, E)
    begins = tl.load(offsets + every, mask=every < e, other=0)
    ends = tl.load(offsets + every + 1, mask=every < e, other=0)
    expert, first, end = tile_of(every, begins, ends, e, above + within % together, BM)
    if first < end:
        row = first.to(tl.int64) + tl.arange(0, BM)
        column, step = (within // together) * BN + tl.arange(0, BN).to(tl.int64), tl.arange(0, BD)
        weights += expert.to(tl.int64) * w_expert
        total = tl.zeros((BM, BN), tl.float32)
        for start in range(0, d, BD):
            at = (start + step).to(tl.int64)
            left = tl.load(
                x + row[:, None] * x_stride + at[None, :], mask=(row < end)[:, None] & (at < d)[None, :], other=0
            )
            right = tl.load(
                weights + column[None, :] * w_row + at[:, None] * w_step,
                mask=(column < n)[None, :] & (at < d)[:, None], other=0,
            )  # fmt: skip
            total = tl.dot(left, right, total, input_precision="ieee")
        tl.store(out + row[:, None] * n + column[None, :], total, mask=(row < end)[:, None] & (column < n)[None, :])


@triton.jit
def grouped_weights_kernel(
    grad, x, offsets, out, n, d, grad_stride, x_stride, BN: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr
):
    below, across = tl.cdiv(n, BN), tl.cdiv(d, BD)
    expert = (tl.program_id(0) // across // below).to(tl.int64)
    row = tl.program_id(0) // across % below * BN + tl.arange(0, BN).to(tl.int64)
    column = tl.program_id(0) % across * BD + tl.arange(0, BD).to(tl.int64)
    begin, end = tl.load(offsets + expert), tl.load(offsets + expert + 1)
    total = tl.zeros((BN, BD), tl.float32)
    for start in range(begin, end, BM):
        at = tl.cast(start, tl.int64) + tl.arange(0, BM)
        left = tl.load(
            grad + at[None, :] * grad_stride + row[:, None], mask=(at < end)[None, :] & (row < n)[:, None], other=0
        )
        right = tl.load(
            x + at[:, None] * x_stride + column[None, :], mask=(at < end)[:, None] & (column < d)[None, :], other=0
        )
        total = tl.dot(left, right, total, input_precision="ieee")
    target = out + expert * n * d + row[:, None] * d + column[None, :]
    tl.store(target, total, mask=(row < n)[:, None] & (column < d)[None, :])


def tile(size: int, most: int = 128) -> int:
    return min(max(triton.next_power_of_2(int(size)), 16), most)


def grouped_mm(x: torch.Tensor, weights: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    (s, d), (e, n) = x.shape, weights.shape[:2]
    out = torch.empty((s, n), dtype=x.dtype, device=x.device)
    if out.numel():
        x = x if x.stride(1) == 1 else x.contiguous()
        bm, bn = tile(triton.cdiv(s, e)), tile(n)
        tiles = triton.cdiv(s, bm) + e  # at most: each expert may have one that is not full
        grouped_kernel[(tiles * triton.cdiv(n, bn),)](
            x, weights, offsets.contiguous(), out, tiles, n, d, e, x.stride(0), *weights.stride(), BM=bm, BN=bn,
            BD=64 if x.element_size() == 2 else 32, E=max(triton.next_power_of_2(int(e)), 2), TOGETHER=8,
            num_warps=8 if bm * bn > 8192 else 4,
        )  # fmt: skip
    return out


def grouped_mm_weights(grad: torch.Tensor, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    (e, n), d = (len(offsets) - 1, grad.shape[1]), x.shape[1]
    out = torch.empty((e, n, d), dtype=x.dtype, device=x.device)
    if out.numel():
        grad, x = (m if m.stride(1) == 1 else m.contiguous() for m in (grad, x))
        bn, bd = tile(n), tile(d)
        grouped_weights_kernel[(e * triton.cdiv(n, bn) * triton.cdiv(d, bd),)](
            grad, x, offsets.contiguous(), out, n, d, grad.stride(0), x.stride(0), BN=bn, BD=bd,
            BM=64 if x.element_size() == 2 else 32, num_warps=8 if bn * bd > 8192 else 4,
        )  # fmt: skip
    return out
