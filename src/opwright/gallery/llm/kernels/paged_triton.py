"""Attention of one token to a cache in pages. A program has the heads of a group, which share keys, and a part of a
sequence; a second kernel combines the parts by the logarithms of their sums."""

import torch
import triton
import triton.language as tl

from opwright.gallery.llm.floats import float32_like
from opwright.gallery.llm.tiles import NO_LIMIT, factors, new_like, with_near_columns

# Programs that keep a large GPU busy, the fewest tokens of a part, and the most parts of a sequence.
PROGRAMS, PART, MOST_PARTS = 528, 256, 64
TOKENS = 64
NUMBERS = ["tokens", "heads", "group", "parts", "page", "window", "width"]


@triton.jit(do_not_specialize=NUMBERS)
def cache_kernel(
    k, v, k_cache, v_cache, slots, page, width, d, k_t, k_h, k_d, v_t, v_h, v_d, to_p, to_s, to_h, to_d,
    of_p, of_s, of_h, of_d, slots_t, BLOCK: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(width, BLOCK)
    token = (tl.program_id(0) // across).to(tl.int64)
    slot = tl.load(slots + token * slots_t)
    if slot < 0:
        return
    columns = tl.program_id(0) % across * BLOCK + tl.arange(0, BLOCK)
    head, place = (columns // d).to(tl.int64), (columns % d).to(tl.int64)
    inside = columns < width
    keys = tl.load(k + token * k_t + head * k_h + place * k_d, mask=inside)
    values = tl.load(v + token * v_t + head * v_h + place * v_d, mask=inside)
    tl.store(k_cache + slot // page * to_p + slot % page * to_s + head * to_h + place * to_d, keys, mask=inside)
    tl.store(v_cache + slot // page * of_p + slot % page * of_s + head * of_h + place * of_d, values, mask=inside)


@triton.jit(do_not_specialize=NUMBERS)
def part_kernel(
    q, k, v, table, lengths, partial, sums, heads, group, parts, page, window, inner, outer,
    q_b, q_h, k_p, k_s, k_h, v_p, v_s, v_h, table_b,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, CAPS: tl.constexpr,
):  # fmt: skip
    part, head = tl.program_id(0) % parts, (tl.program_id(0) // parts % heads).to(tl.int64)
    sequence = (tl.program_id(0) // parts // heads).to(tl.int64)
    length = tl.load(lengths + sequence)
    first = tl.maximum(length - window, 0)
    share = tl.cdiv(tl.cdiv(length - first, parts), BLOCK) * BLOCK
    begin = first + part * share
    end = tl.minimum(begin + share, length)
    columns, members = tl.arange(0, D)[None, :], tl.arange(0, GROUP)
    is_member = members < group
    rows = head * group + members
    query = tl.load(q + sequence * q_b + rows[:, None] * q_h + columns, mask=is_member[:, None], other=0)
    result, total = tl.zeros((GROUP, D), tl.float32), tl.zeros((GROUP,), tl.float32)
    top = tl.full((GROUP,), -float("inf"), tl.float32)
    for start in tl.range(begin, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < end
        number = tl.load(table + sequence * table_b + at // page, mask=inside, other=0).to(tl.int64)
        place = (at % page).to(tl.int64)
        keys = tl.load(k + (number * k_p + place * k_s + head * k_h)[:, None] + columns, mask=inside[:, None], other=0)
        x = tl.dot(query, tl.trans(keys), input_precision="ieee")
        if CAPS:
            x = 1 - 2 / (tl.exp2(x * inner) + 1)  # tanh
        x = tl.where(inside[None, :], x, -float("inf"))
        new = tl.maximum(top, tl.max(x, 1) * outer)
        shift = tl.where(new == -float("inf"), 0.0, new)
        weights, kept = tl.exp2(x * outer - shift[:, None]), tl.exp2(top - shift)
        values = tl.load(
            v + (number * v_p + place * v_s + head * v_h)[:, None] + columns, mask=inside[:, None], other=0
        )
        result = result * kept[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        total, top = total * kept + tl.sum(weights, 1), new
    to = (sequence * heads * group + rows) * parts + part
    result = result / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(partial + to[:, None] * D + columns, result, mask=is_member[:, None])
    tl.store(sums + to, top + tl.log2(total), mask=is_member)


@triton.jit(do_not_specialize=NUMBERS)
def combine_kernel(partial, sums, out, parts, D: tl.constexpr, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns, part = tl.arange(0, D), tl.arange(0, PARTS)
    logs = tl.load(sums + row * parts + part, mask=part < parts, other=-float("inf"))
    top = tl.max(logs, 0)
    weights = tl.exp2(logs - tl.where(top == -float("inf"), 0.0, top))
    at = partial + (row * parts + part)[:, None] * D + columns[None, :]
    total = tl.sum(weights, 0)
    result = tl.sum(weights[:, None] * tl.load(at, mask=(part < parts)[:, None], other=0), 0)
    tl.store(out + row * D + columns, result / tl.where(total == 0, 1.0, total))


def reshape_and_cache_(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    tokens, heads, d = k.shape
    if k.numel():
        block = min(triton.next_power_of_2(int(heads * d)), 2048)
        cache_kernel[(tokens * triton.cdiv(heads * d, block),)](
            k, v, k_cache, v_cache, slots, k_cache.shape[1], heads * d, d, *k.stride(), *v.stride(), *k_cache.stride(),
            *v_cache.stride(), slots.stride(0), BLOCK=block,
        )  # fmt: skip


def paged_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor,
    window: int, softcap: float, scale: float | None,
) -> torch.Tensor:  # fmt: skip
    q, k_cache, v_cache, table = map(with_near_columns, (q, k_cache, v_cache, table))
    (b, hq, d), (_, page, heads, _) = q.shape, k_cache.shape
    out, lengths = new_like(q), lengths.contiguous()
    if not out.numel():
        return out
    longest = table.shape[1] * page
    parts = max(min(PROGRAMS // (b * heads), triton.cdiv(longest, PART), MOST_PARTS), 1)
    partial, sums = float32_like(q, b, hq, parts, d), float32_like(q, b, hq, parts)
    part_kernel[(b * heads * parts,)](
        q, k_cache, v_cache, table, lengths, partial, sums, heads, hq // heads, parts, page,
        window if window > 0 else NO_LIMIT, *factors(q, softcap, scale)[:2], *q.stride()[:2], *k_cache.stride()[:3],
        *v_cache.stride()[:3], table.stride(0), D=d, GROUP=max(triton.next_power_of_2(int(hq // heads)), 16),
        BLOCK=TOKENS if q.dtype != torch.float32 else TOKENS // 2, CAPS=softcap > 0, num_warps=4, num_stages=3,
    )  # fmt: skip
    combine_kernel[(b * hq,)](partial, sums, out, parts, D=d, PARTS=triton.next_power_of_2(int(parts)), num_warps=4)
    return out
