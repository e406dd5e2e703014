"""Flash attention. A program has a tile of queries (of keys, for the gradients of keys and values) and reads the tiles
that it sees; of these, only those at the edges of the band need a mask. No atomics, so the bits are the same in each
call. Of sequences that are packed after each other, a program finds its own by its number."""

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from triton.language.extra.libdevice import tanh

from opwright.gallery.llm.floats import float32_like
from opwright.gallery.llm.tiles import Offsets, band, factors, new_like, options, tiles_of, with_near_columns

LN_2 = tl.constexpr(math.log(2))
AT_ONCE = tl.constexpr(256)  # so many packed sequences does a program look at to find its own
EXACT_TANH = tl.constexpr(2)  # of ``CAPS``; for 1, a shorter one is off by some 1e-7, which the soft cap multiplies
# Arguments of which Triton would otherwise compile a kernel for each divisor.
LENGTHS = ["tiles", "sequences", "heads", "group", "s", "t", "before", "after", "lse_b", "lse_h", "delta_b", "delta_h"]

# -- parts ---------------------------------------------------------------------------------------------------------


@triton.jit
def begun(tile, begins, sequence, sequences, BLOCK: tl.constexpr):
    """How many of some packed sequences begin at a tile or before it: each begins with a new one.

    It takes numbers: torch.compile takes a pointer that a function gets for one that the kernel writes through, if what
    the function returns is part of an address.
    """
    return tl.sum(((begins // BLOCK + sequence <= tile) & (sequence < sequences)).to(tl.int32))


@triton.jit
def span(first, last, before, after, length, BLOCK: tl.constexpr):
    """The tiles that are seen from positions ``first`` to ``last``: where they begin and end, and in between, where
    those begin and end that need no mask."""
    begin = tl.maximum(first - before, 0) // BLOCK * BLOCK
    end = begin + tl.cdiv(tl.maximum(tl.minimum(last + after + 1, length) - begin, 0), BLOCK) * BLOCK
    whole = tl.minimum(tl.maximum(tl.cdiv(tl.maximum(last - before, 0), BLOCK) * BLOCK, begin), end)
    rest = tl.maximum(tl.minimum(first + after + 1, length), 0) // BLOCK * BLOCK
    return begin, whole, tl.minimum(tl.maximum(rest, whole), end), end


@triton.jit
def pointers(x, stride, ROWS: tl.constexpr, D: tl.constexpr):
    """Of a tile of rows. Offsets may exceed 32 bits."""
    return x + tl.arange(0, ROWS).to(tl.int64)[:, None] * stride + tl.arange(0, D)[None, :]


@triton.jit
def load_tile(at, start, length, stride, MASKED: tl.constexpr):
    """The rows from ``start`` on, 0 past the last one."""
    at += tl.cast(start, tl.int64) * stride
    if MASKED:
        return tl.load(at, mask=(start + tl.arange(0, at.shape[0]) < length)[:, None], other=0)
    return tl.load(at)


@triton.jit
def store_tile(at, start, length, stride, values):
    at += tl.cast(start, tl.int64) * stride
    tl.store(at, values, mask=(start + tl.arange(0, at.shape[0]) < length)[:, None])


@triton.jit
def product(a, b):
    """In float32, also of float32: not in TF32."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def capped(x, inner, CAPS: tl.constexpr):
    """A product of q and k, or the tanh of it: times ``outer``, the score by powers of two."""
    if CAPS == 0:
        return x
    if CAPS == EXACT_TANH:
        return tanh(x * (inner * (LN_2 / 2)))
    return 1 - 2 / (tl.exp2(x * inner) + 1)


# -- forward -------------------------------------------------------------------------------------------------------


@triton.jit
def forward_step(
    start, query, at, k_at, v_at, result, total, top, k_s, v_s, t, before, after, inner, outer,
    MASKED: tl.constexpr, CAPS: tl.constexpr,
):  # fmt: skip
    x = capped(product(query, tl.trans(load_tile(k_at, start, t, k_s, MASKED))), inner, CAPS)
    if MASKED:
        keys = (start + tl.arange(0, k_at.shape[0]))[None, :]
        x = tl.where((keys < t) & (keys >= (at - before)[:, None]) & (keys <= (at + after)[:, None]), x, -float("inf"))
    new = tl.maximum(top, tl.max(x, 1) * outer)
    shift = tl.where(new == -float("inf"), 0.0, new)
    weights, kept = tl.exp2(x * outer - shift[:, None]), tl.exp2(top - shift)
    values = load_tile(v_at, start, t, v_s, MASKED)
    result = result * kept[:, None] + product(weights.to(values.dtype), values)
    return result, total * kept + tl.sum(weights, 1), new


@triton.jit(do_not_specialize=LENGTHS)
def forward_kernel(
    q, k, v, out, lse, offsets_q, offsets_k, tiles, sequences, heads, group, s, t, before, after, inner, outer,
    q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s, out_b, out_h, out_s, lse_b, lse_h,
    D: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, CAPS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    tile = tiles - 1 - tl.program_id(0) % tiles  # those with the most keys first
    batch, head = (tl.program_id(0) // tiles // heads).to(tl.int64), (tl.program_id(0) // tiles % heads).to(tl.int64)
    first_q, first_k = batch * 0, batch * 0
    if PACKED:
        sequence, among = 0, sequences  # the tile's own is one of so many from this one on
        while among > 1:
            among = tl.cdiv(among, AT_ONCE)
            some = sequence + tl.arange(0, AT_ONCE) * among
            begins = tl.load(offsets_q + some, mask=some < sequences, other=0)
            sequence += (begun(tile, begins, some, sequences, BQ) - 1) * among
        begin_q, begin_k = tl.load(offsets_q + sequence), tl.load(offsets_k + sequence)
        s, t = tl.load(offsets_q + sequence + 1) - begin_q, tl.load(offsets_k + sequence + 1) - begin_k
        tile -= begin_q // BQ + sequence
        first_q, first_k = begin_q.to(tl.int64), begin_k.to(tl.int64)
    here = tile * BQ
    if here >= s:
        return
    q_at = pointers(q + batch * q_b + head * q_h + first_q * q_s, q_s, BQ, D)
    k_at = pointers(k + batch * k_b + head // group * k_h + first_k * k_s, k_s, BK, D)
    v_at = pointers(v + batch * v_b + head // group * v_h + first_k * v_s, v_s, BK, D)
    query = load_tile(q_at, here, s, q_s, True)
    result, total = tl.zeros((BQ, D), tl.float32), tl.zeros((BQ,), tl.float32)
    top = tl.full((BQ,), -float("inf"), tl.float32)
    rows = here + tl.arange(0, BQ)
    at = rows + (t - s)
    begin, whole, rest, end = span(here + t - s, tl.minimum(here + BQ, s) - 1 + t - s, before, after, t, BK)
    for start in tl.range(begin, end - (rest - whole), BK):
        start += tl.where(start < whole, 0, rest - whole)
        result, total, top = forward_step(
            start, query, at, k_at, v_at, result, total, top, k_s, v_s, t, before, after, inner, outer, True, CAPS,
        )  # fmt: skip
    for start in tl.range(whole, rest, BK):
        result, total, top = forward_step(
            start, query, at, k_at, v_at, result, total, top, k_s, v_s, t, before, after, inner, outer, False, CAPS,
        )  # fmt: skip
    result = result / tl.where(total == 0, 1.0, total)[:, None]
    out_at = pointers(out + batch * out_b + head * out_h + first_q * out_s, out_s, BQ, D)
    store_tile(out_at, here, s, out_s, result)
    tl.store(lse + batch * lse_b + head * lse_h + first_q + rows, (top + tl.log2(total)) * LN_2, mask=rows < s)


# -- backward ------------------------------------------------------------------------------------------------------


@triton.jit
def query_step(
    start, query, above, whole_lse, delta, at, k_at, v_at, change, k_s, v_s, t, before, after, inner, outer,
    MASKED: tl.constexpr, CAPS: tl.constexpr,
):  # fmt: skip
    key = load_tile(k_at, start, t, k_s, MASKED)
    x = capped(product(query, tl.trans(key)), inner, CAPS)
    weights = tl.exp2(x * outer - whole_lse[:, None])
    if MASKED:
        keys = (start + tl.arange(0, k_at.shape[0]))[None, :]
        seen = (keys < t) & (keys >= (at - before)[:, None]) & (keys <= (at + after)[:, None])
        weights = tl.where(seen, weights, 0.0)
    slopes = weights * (product(above, tl.trans(load_tile(v_at, start, t, v_s, MASKED))) - delta[:, None])
    slopes = slopes * (1 - x * x) if CAPS else slopes
    return change + product(slopes.to(key.dtype), key)


@triton.jit(do_not_specialize=LENGTHS)
def query_kernel(
    grad, q, k, v, out, lse, delta, grad_q, offsets_q, offsets_k, tiles, sequences, heads, group, s, t, before, after,
    inner, outer, scale, grad_b, grad_h, grad_s, q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s, out_b, out_h, out_s,
    lse_b, lse_h, to_b, to_h, to_s, delta_b, delta_h,
    D: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, CAPS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    tile = tiles - 1 - tl.program_id(0) % tiles
    batch, head = (tl.program_id(0) // tiles // heads).to(tl.int64), (tl.program_id(0) // tiles % heads).to(tl.int64)
    first_q, first_k = batch * 0, batch * 0
    if PACKED:
        sequence, among = 0, sequences  # the tile's own is one of so many from this one on
        while among > 1:
            among = tl.cdiv(among, AT_ONCE)
            some = sequence + tl.arange(0, AT_ONCE) * among
            begins = tl.load(offsets_q + some, mask=some < sequences, other=0)
            sequence += (begun(tile, begins, some, sequences, BQ) - 1) * among
        begin_q, begin_k = tl.load(offsets_q + sequence), tl.load(offsets_k + sequence)
        s, t = tl.load(offsets_q + sequence + 1) - begin_q, tl.load(offsets_k + sequence + 1) - begin_k
        tile -= begin_q // BQ + sequence
        first_q, first_k = begin_q.to(tl.int64), begin_k.to(tl.int64)
    here = tile * BQ
    if here >= s:
        return
    rows = here + tl.arange(0, BQ)
    query = load_tile(pointers(q + batch * q_b + head * q_h + first_q * q_s, q_s, BQ, D), here, s, q_s, True)
    grad += batch * grad_b + head * grad_h + first_q * grad_s
    above = load_tile(pointers(grad, grad_s, BQ, D), here, s, grad_s, True)
    out += batch * out_b + head * out_h + first_q * out_s
    result = load_tile(pointers(out, out_s, BQ, D), here, s, out_s, True)
    along = tl.sum(above.to(tl.float32) * result.to(tl.float32), 1)
    tl.store(delta + batch * delta_b + head * delta_h + first_q + rows, along, mask=rows < s)
    lse += batch * lse_b + head * lse_h + first_q
    whole_lse = tl.load(lse + rows, mask=rows < s, other=0) / LN_2
    k_at = pointers(k + batch * k_b + head // group * k_h + first_k * k_s, k_s, BK, D)
    v_at = pointers(v + batch * v_b + head // group * v_h + first_k * v_s, v_s, BK, D)
    change = tl.zeros((BQ, D), tl.float32)
    at = rows + (t - s)
    begin, whole, rest, end = span(here + t - s, tl.minimum(here + BQ, s) - 1 + t - s, before, after, t, BK)
    for start in tl.range(begin, end - (rest - whole), BK):
        start += tl.where(start < whole, 0, rest - whole)
        change = query_step(
            start, query, above, whole_lse, along, at, k_at, v_at, change, k_s, v_s, t, before, after, inner, outer,
            True, CAPS,
        )  # fmt: skip
    for start in tl.range(whole, rest, BK):
        change = query_step(
            start, query, above, whole_lse, along, at, k_at, v_at, change, k_s, v_s, t, before, after, inner, outer,
            False, CAPS,
        )  # fmt: skip
    to_at = pointers(grad_q + batch * to_b + head * to_h + first_q * to_s, to_s, BQ, D)
    store_tile(to_at, here, s, to_s, change * scale)


@triton.jit
def key_step(
    start, key, value, at, q_at, grad_at, lse, delta, of_key, of_value, q_s, grad_s, s, before, after, inner, outer,
    MASKED: tl.constexpr, CAPS: tl.constexpr,
):  # fmt: skip
    rows = start + tl.arange(0, q_at.shape[0])
    query = load_tile(q_at, start, s, q_s, MASKED)
    above = load_tile(grad_at, start, s, grad_s, MASKED)
    whole_lse = tl.load(lse + rows, mask=rows < s, other=0) / LN_2
    along = tl.load(delta + rows, mask=rows < s, other=0)
    x = capped(product(key, tl.trans(query)), inner, CAPS)
    weights = tl.exp2(x * outer - whole_lse[None, :])
    if MASKED:
        queries = rows[None, :]
        seen = (queries < s) & (queries >= (at - after)[:, None]) & (queries <= (at + before)[:, None])
        weights = tl.where(seen, weights, 0.0)
    of_value += product(weights.to(above.dtype), above)
    slopes = weights * (product(value, tl.trans(above)) - along[None, :])
    slopes = slopes * (1 - x * x) if CAPS else slopes
    return of_key + product(slopes.to(query.dtype), query), of_value


@triton.jit(do_not_specialize=LENGTHS)
def key_kernel(
    grad, q, k, v, lse, delta, grad_k, grad_v, offsets_q, offsets_k, tiles, sequences, heads, group, s, t, before,
    after, inner, outer, scale, grad_b, grad_h, grad_s, q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s, lse_b, lse_h,
    delta_b, delta_h, to_b, to_h, to_s,
    D: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, CAPS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0) % tiles
    batch, head = (tl.program_id(0) // tiles // heads).to(tl.int64), (tl.program_id(0) // tiles % heads).to(tl.int64)
    first_q, first_k = batch * 0, batch * 0
    if PACKED:
        sequence, among = 0, sequences  # the tile's own is one of so many from this one on
        while among > 1:
            among = tl.cdiv(among, AT_ONCE)
            some = sequence + tl.arange(0, AT_ONCE) * among
            begins = tl.load(offsets_k + some, mask=some < sequences, other=0)
            sequence += (begun(tile, begins, some, sequences, BK) - 1) * among
        begin_q, begin_k = tl.load(offsets_q + sequence), tl.load(offsets_k + sequence)
        s, t = tl.load(offsets_q + sequence + 1) - begin_q, tl.load(offsets_k + sequence + 1) - begin_k
        tile -= begin_k // BK + sequence
        first_q, first_k = begin_q.to(tl.int64), begin_k.to(tl.int64)
    here = tile * BK
    if here >= t:
        return
    key = load_tile(pointers(k + batch * k_b + head * k_h + first_k * k_s, k_s, BK, D), here, t, k_s, True)
    value = load_tile(pointers(v + batch * v_b + head * v_h + first_k * v_s, v_s, BK, D), here, t, v_s, True)
    of_key, of_value = tl.zeros((BK, D), tl.float32), tl.zeros((BK, D), tl.float32)
    at = here + tl.arange(0, BK) - (t - s)  # the query at the same position
    begin, whole, rest, end = span(here - (t - s), tl.minimum(here + BK, t) - 1 - (t - s), after, before, s, BQ)
    for member in range(group):
        of = head * group + member
        q_at = pointers(q + batch * q_b + of * q_h + first_q * q_s, q_s, BQ, D)
        grad_at = pointers(grad + batch * grad_b + of * grad_h + first_q * grad_s, grad_s, BQ, D)
        lse_at, delta_at = lse + batch * lse_b + of * lse_h + first_q, delta + batch * delta_b + of * delta_h + first_q
        for start in tl.range(begin, end - (rest - whole), BQ):
            start += tl.where(start < whole, 0, rest - whole)
            of_key, of_value = key_step(
                start, key, value, at, q_at, grad_at, lse_at, delta_at, of_key, of_value, q_s, grad_s, s, before, after,
                inner, outer, True, CAPS,
            )  # fmt: skip
        for start in tl.range(whole, rest, BQ):
            of_key, of_value = key_step(
                start, key, value, at, q_at, grad_at, lse_at, delta_at, of_key, of_value, q_s, grad_s, s, before, after,
                inner, outer, False, CAPS,
            )  # fmt: skip
    at_k = pointers(grad_k + batch * to_b + head * to_h + first_k * to_s, to_s, BK, D)
    at_v = pointers(grad_v + batch * to_b + head * to_h + first_k * to_s, to_s, BK, D)
    store_tile(at_k, here, t, to_s, of_key * scale)
    store_tile(at_v, here, t, to_s, of_value)


# -- launches ------------------------------------------------------------------------------------------------------


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, offsets: Offsets,
    causal: bool, window: int, softcap: float, scale: float | None,
) -> None:  # fmt: skip
    (b, hq, s, _), hkv = q.shape, k.shape[1]
    sequences = None if offsets is None else len(offsets[0]) - 1
    if out.numel():
        launch, block = options("forward", q, s, softcap, offsets is not None)
        tiles = tiles_of(s, block, sequences)
        forward_kernel[(tiles * b * hq,)](
            q, k, v, out, lse, *(offsets or (lse, lse)), tiles, sequences or 0, hq, hq // hkv, s, k.shape[2],
            *band(causal, window), *factors(q, softcap, scale)[:2], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
            *out.stride()[:3], *lse.stride()[:2], **launch,
        )  # fmt: skip


def backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    grads: Sequence[torch.Tensor], offsets: Offsets, causal: bool, window: int, softcap: float, scale: float | None,
) -> None:  # fmt: skip
    (b, hq, s, _), (hkv, t) = q.shape, k.shape[1:3]
    grad_q, grad_k, grad_v = grads
    delta = float32_like(q, b, hq, s)
    sequences = None if offsets is None else len(offsets[0]) - 1
    common = (hq // hkv, s, t, *band(causal, window), *factors(q, softcap, scale))
    if grad_q.numel():
        launch, block = options("of_queries", q, s, softcap, offsets is not None)
        tiles = tiles_of(s, block, sequences)
        query_kernel[(tiles * b * hq,)](
            grad, q, k, v, out, lse, delta, grad_q, *(offsets or (lse, lse)), tiles, sequences or 0, hq, *common,
            *grad.stride()[:3], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
            *lse.stride()[:2], *grad_q.stride()[:3], *delta.stride()[:2], **launch,
        )  # fmt: skip
    if grad_k.numel():
        launch, block = options("of_keys", q, t, softcap, offsets is not None)
        tiles = tiles_of(t, block, sequences)
        key_kernel[(tiles * b * hkv,)](
            grad, q, k, v, lse, delta, grad_k, grad_v, *(offsets or (lse, lse)), tiles, sequences or 0, hkv, *common,
            *grad.stride()[:3], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *lse.stride()[:2],
            *delta.stride()[:2], *grad_k.stride()[:3], **launch,
        )  # fmt: skip


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window: int, softcap: float, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    b, s, hq, _ = q.shape
    out, lse = new_like(q), float32_like(q, b, hq, s)
    q, k, v, to = (with_near_columns(x).transpose(1, 2) for x in (q, k, v, out))
    forward(q, k, v, to, lse, None, causal, window, softcap, scale)
    return out, lse


def attention_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    causal: bool, window: int, softcap: float, scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    grads = new_like(q), new_like(k), new_like(v)
    grad, q, k, v, out, *to = (with_near_columns(x).transpose(1, 2) for x in (grad, q, k, v, out, *grads))
    backward(grad, q, k, v, out, with_near_columns(lse), to, None, causal, window, softcap, scale)
    return grads


def heads_first(x: torch.Tensor) -> torch.Tensor:
    """Packed sequences as one batch."""
    return with_near_columns(x).transpose(0, 1)[None]


def packed_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor, cu_k: torch.Tensor,
    causal: bool, window: int, softcap: float, scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    out, lse = new_like(q), float32_like(q, q.shape[1], q.shape[0])
    offsets = cu_q.contiguous(), cu_k.contiguous()
    q, k, v = map(heads_first, (q, k, v))
    forward(q, k, v, heads_first(out), lse[None], offsets, causal, window, softcap, scale)
    return out, lse


def packed_attention_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    cu_q: torch.Tensor, cu_k: torch.Tensor, causal: bool, window: int, softcap: float, scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    grads, offsets = (new_like(q), new_like(k), new_like(v)), (cu_q.contiguous(), cu_k.contiguous())
    grad, q, k, v, out = map(heads_first, (grad, q, k, v, out))
    lse, to = with_near_columns(lse)[None], [heads_first(x) for x in grads]
    backward(grad, q, k, v, out, lse, to, offsets, causal, window, softcap, scale)
    return grads
