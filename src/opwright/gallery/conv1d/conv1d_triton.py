"""1-D convolution in Triton: a thread loads and stores 16 bytes at once, and sums from a window in its registers.

A tile has a row for each 16 bytes, which Triton assigns to one thread, so operations within a row move no data.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def rotated(rows):
    """Every row rotated left by one place."""
    if rows.shape[1] > 1:
        even, odd = tl.split(tl.reshape(rows, (rows.shape[0], rows.shape[1] // 2, 2)))
        rows = tl.reshape(tl.join(odd, rotated(even)), rows.shape)
    return rows


@triton.jit
def add_taps(totals, own, following, k, j, m):
    """Adds the products with taps j, j + 1, …, as many as a row is long."""
    ROWS: tl.constexpr = own.shape[0]
    EACH: tl.constexpr = own.shape[1]
    window = tl.reshape(tl.permute(tl.join(own, following), (0, 2, 1)), (ROWS, 2 * EACH))
    for q in tl.static_range(EACH):
        exists = j + q < m
        tap = tl.load(k + j + q, mask=exists, other=0.0).to(totals.dtype)
        under_tap, _ = tl.split(tl.permute(tl.reshape(window, (ROWS, 2, EACH)), (0, 2, 1)))
        # Not a tap of zero, which would make NaN of an infinite input.
        totals = tl.where(exists, totals + under_tap * tap, totals)
        window = rotated(window)
    return totals


@triton.jit
def convolve_rows(x, k, out, m, ROWS: tl.constexpr, EACH: tl.constexpr, SUM: tl.constexpr):
    offsets = tl.arange(0, ROWS)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    # The elements after a row are the row of the next thread, so they come from the cache.
    own, following = tl.load(x + offsets).to(SUM), tl.load(x + offsets + EACH).to(SUM)
    totals = add_taps(tl.zeros((ROWS, EACH), SUM), own, following, k, 0, m)
    for j in range(EACH, m, EACH):
        own, following = following, tl.load(x + j + offsets + EACH).to(SUM)
        totals = add_taps(totals, own, following, k, j, m)
    tl.store(out + offsets, totals)


@triton.jit
def convolve_end(x, k, out, left, m, TILE: tl.constexpr, SUM: tl.constexpr):
    offsets = tl.arange(0, TILE)
    total = tl.zeros((TILE,), SUM)
    for j in range(m):
        values = tl.load(x + j + offsets, mask=offsets < left - j, other=0.0).to(SUM)
        total += values * tl.load(k + j).to(SUM)
    tl.store(out + offsets, total, mask=offsets < left)


@triton.jit
def conv1d_kernel(x, k, out, n, m, ROWS: tl.constexpr, EACH: tl.constexpr, SUM: tl.constexpr):
    # 64 bits wide: a tensor may have more than 2³¹ elements.
    start = tl.program_id(0).to(tl.int64) * (ROWS * EACH)
    left = n - start
    # A mask that may end within a row would split its 16 bytes, so the tiles at the end use another function.
    if ROWS * EACH + m + EACH <= left:
        convolve_rows(x + start, k, out + start, m, ROWS, EACH, SUM)
    else:
        convolve_end(x + start, k, out + start, left, m, ROWS * EACH, SUM)


def conv1d(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Half types are summed in float32 and rounded once."""
    x, k = x.contiguous(), k.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    n = out.numel()
    if n > 0:  # a grid may not be empty
        rows, each = 256, 16 // x.element_size()
        sums = tl.float64 if x.dtype == torch.float64 else tl.float32
        conv1d_kernel[(triton.cdiv(n, rows * each),)](x, k, out, n, k.numel(), ROWS=rows, EACH=each, SUM=sums)
    return out
