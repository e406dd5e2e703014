"""Quantisation, groups of columns in a program; and products of matrices in tiles, with their scales."""

import torch
import triton
import triton.language as tl

from opwright.gallery.llm.floats import float32_like, rows_of

MOST_IN_REGISTERS = 16_384  # of a group; longer ones are read twice
CHUNK = 4096


@triton.jit
def narrowed(values, inverse, LARGEST: tl.constexpr, TO_INT: tl.constexpr):
    scaled = tl.clamp(values * inverse, -LARGEST, LARGEST)
    if TO_INT:
        scaled = (scaled + 12582912.0) - 12582912.0  # 1.5 · 2^23: what is left is rounded to even
    return scaled


@triton.jit
def quantize_kernel(
    x, out, scales, k, groups, block, stride,
    LARGEST: tl.constexpr, TO_INT: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(groups, GROUPS)
    row = (tl.program_id(0) // across).to(tl.int64)
    group, column = tl.program_id(0) % across * GROUPS + tl.arange(0, GROUPS), tl.arange(0, BLOCK)
    at = group[:, None] * block + column[None, :]
    inside = (column[None, :] < block) & (at < k)
    values = tl.load(x + row * stride + at, mask=inside, other=0).to(tl.float32)
    largest = tl.max(tl.abs(values), 1)
    largest = tl.where(largest > 0, largest, LARGEST)
    tl.store(scales + row * groups + group, largest / LARGEST, mask=group < groups)
    found = narrowed(values, (LARGEST / largest)[:, None], LARGEST, TO_INT)
    tl.store(out + row * k + at, found.to(out.dtype.element_ty), mask=inside)


@triton.jit
def largest_kernel(x, partial, k, groups, block, stride, CHUNK: tl.constexpr):
    chunks = tl.cdiv(block, CHUNK)
    place = tl.program_id(0).to(tl.int64)  # of a chunk of a group of a row
    row, group = place // chunks // groups, place // chunks % groups
    column = place % chunks * CHUNK + tl.arange(0, CHUNK)
    at = group * block + column
    values = tl.load(x + row * stride + at, mask=(column < block) & (at < k), other=0).to(tl.float32)
    tl.store(partial + place, tl.max(tl.abs(values), 0))


@triton.jit
def scale_kernel(
    x, out, scales, k, groups, block, stride, LARGEST: tl.constexpr, TO_INT: tl.constexpr, CHUNK: tl.constexpr
):
    across = tl.cdiv(k, CHUNK)
    row = (tl.program_id(0) // across).to(tl.int64)
    at = (tl.program_id(0) % across).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(x + row * stride + at, mask=at < k, other=0).to(tl.float32)
    scale = tl.load(scales + row * groups + at // block, mask=at < k, other=1)
    found = narrowed(values, 1 / scale, LARGEST, TO_INT)
    tl.store(out + row * k + at, found.to(out.dtype.element_ty), mask=at < k)


def quantize(x: torch.Tensor, block: int, dtype: torch.dtype, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    m, k = x.shape
    block = min(block, int(k))
    groups = triton.cdiv(k, block)
    out, scales = torch.empty((m, k), dtype=dtype, device=x.device), float32_like(x, m, groups)
    x, options = rows_of(x), {"LARGEST": largest, "TO_INT": dtype == torch.int8}
    if block > MOST_IN_REGISTERS and m:
        chunks = triton.cdiv(block, CHUNK)
        partial = float32_like(x, m, groups, chunks)
        largest_kernel[(m * groups * chunks,)](x, partial, k, groups, block, x.stride(0), CHUNK=CHUNK)
        found = partial.amax(2)
        torch.div(torch.where(found > 0, found, largest), largest, out=scales)
        scale_kernel[(m * triton.cdiv(k, CHUNK),)](
            x, out, scales, k, groups, block, x.stride(0), **options, CHUNK=CHUNK
        )
    elif m:
        whole = triton.next_power_of_2(block)
        together = min(triton.next_power_of_2(groups), max(CHUNK // whole, 1))
        quantize_kernel[(m * triton.cdiv(groups, together),)](
            x, out, scales, k, groups, block, x.stride(0), **options, GROUPS=together, BLOCK=whole,
            num_warps=8 if whole > CHUNK else 4,
        )  # fmt: skip
    return out, scales


def quantize_int8(x: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    return quantize(x, block, torch.int8, 127.0)


def quantize_fp8(x: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    return quantize(x, block, torch.float8_e4m3fn, 448.0)


# -- products ----------------------------------------------------------------------------------------------------


@triton.jit
def product_kernel(
    a, b, a_scale, b_scale, out, m, n, k, a_stride, b_stride, a_scale_row, a_scale_step, b_scale_row, b_scale_step,
    IN_BLOCKS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    # TOGETHER rows of tiles share the columns' tiles in the cache.
    below, across = tl.cdiv(m, BM), tl.cdiv(n, BN)
    first = tl.program_id(0) // (TOGETHER * across) * TOGETHER
    rows = min(below - first, TOGETHER)
    within = tl.program_id(0) % (TOGETHER * across)
    row = ((first + within % rows) * BM + tl.arange(0, BM)).to(tl.int64)
    column = ((within // rows) * BN + tl.arange(0, BN)).to(tl.int64)
    step = tl.arange(0, BK)
    of_rows = a_scale + row * a_scale_row
    of_columns = b_scale + (column // 128 if IN_BLOCKS else column) * b_scale_row
    total = tl.zeros((BM, BN), tl.float32 if IN_BLOCKS or a.dtype.element_ty != tl.int8 else tl.int32)
    for start in range(0, k, BK):
        left = tl.load(
            a + row[:, None] * a_stride + (start + step)[None, :],
            mask=(row < m)[:, None] & (start + step < k)[None, :], other=0.0,
        )  # fmt: skip
        right = tl.load(
            b + column[None, :] * b_stride + (start + step)[:, None],
            mask=(column < n)[None, :] & (start + step < k)[:, None], other=0.0,
        )  # fmt: skip
        if left.dtype != tl.int8:
            # Hopper's tensor cores keep some 13 bits of the largest product in sums of floats of a byte.
            left, right = left.to(tl.float16), right.to(tl.float16)
        if IN_BLOCKS:  # BK is 128, as the blocks are
            block = start // BK
            scale = tl.load(of_rows + block * a_scale_step, mask=row < m, other=0)[:, None]
            scale *= tl.load(of_columns + block * b_scale_step, mask=column < n, other=0)[None, :]
            total += tl.dot(left, right).to(tl.float32) * scale
        else:
            total = tl.dot(left, right, total, out_dtype=total.dtype)
    found = total.to(tl.float32)
    if not IN_BLOCKS:
        found *= tl.load(of_rows, mask=row < m, other=0)[:, None]
        found *= tl.load(of_columns, mask=column < n, other=0)[None, :]
    tl.store(out + row[:, None] * n + column[None, :], found, mask=(row < m)[:, None] & (column < n)[None, :])


def product(a, b, a_scale, b_scale, scale_strides, in_blocks):
    (m, k), n = a.shape, len(b)
    out = torch.empty((m, n), dtype=torch.bfloat16, device=a.device)
    a, b = (t if t.stride(1) == 1 else t.contiguous() for t in (a, b))
    bm, bn = (min(max(triton.next_power_of_2(int(size)), 16), 128) for size in (m, n))
    if out.numel():
        product_kernel[(triton.cdiv(m, bm) * triton.cdiv(n, bn),)](
            a, b, a_scale, b_scale, out, m, n, k, a.stride(0), b.stride(0), *scale_strides[0], *scale_strides[1],
            IN_BLOCKS=in_blocks, BM=bm, BN=bn, BK=128, TOGETHER=8, num_warps=8 if bm * bn > 8192 else 4, num_stages=3,
        )  # fmt: skip
    return out


def scaled_mm(a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor) -> torch.Tensor:
    strides = ((scale.stride(0) if len(scale) > 1 else 0, 0) for scale in (a_scale, b_scale))
    return product(a, b, a_scale, b_scale, list(strides), in_blocks=False)


def block_scaled_mm(a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor) -> torch.Tensor:
    return product(a, b, a_scale, b_scale, [a_scale.stride(), b_scale.stride()], in_blocks=True)
