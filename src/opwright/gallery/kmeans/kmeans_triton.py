"""The nearest mean of each point, and the sums of the points of each mean, in Triton: one pass over the points."""

import torch
import triton
import triton.language as tl


@triton.jit
def root(squares):
    # Rounded as NumPy's: tl.sqrt is only for float64.
    if squares.dtype == tl.float64:
        return tl.sqrt(squares)
    else:  # noqa: RET505  # Triton 3.6 compiles a return after the `if` as well, and their types differ
        return tl.sqrt_rn(squares)


@triton.jit
def nearest(points, means, rows, inside, K, D: tl.constexpr):
    # NumPy's order, for D < 8: a sum from left to right, then the root (two squares that differ may have one root,
    # and then the first mean wins); a NaN is nearer than any number. Last bits may differ: the GPU's compiler fuses
    # each multiplication with the addition behind it.
    best = tl.full(rows.shape, float("inf"), points.dtype.element_ty)
    label = tl.zeros(rows.shape, tl.int32)
    for k in range(K):
        distance = tl.zeros(rows.shape, points.dtype.element_ty)
        for d in tl.static_range(D):
            offset = tl.load(points + rows * D + d, mask=inside, other=0) - tl.load(means + k * D + d)
            distance += offset * offset
        distance = root(distance)
        nearer = (distance < best) | ((distance != distance) & (best == best))
        nearer = nearer | (k == 0)
        best = tl.where(nearer, distance, best)
        label = tl.where(nearer, k, label)
    return label


@triton.jit
def assign_kernel(points, means, out, n, K, D: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < n
    label = nearest(points, means, rows, inside, K, D)
    tl.store(out + rows, label.to(tl.int64), mask=inside)


@triton.jit
def sums_kernel(
    points, means, sums, counts, n, K, D: tl.constexpr, BLOCK: tl.constexpr, KS: tl.constexpr, DS: tl.constexpr
):
    # Every lane of a program sums its own points, and the lanes' sums are added once, at the end. KS and DS are K and D
    # rounded up to powers of two.
    ks, ds = tl.arange(0, KS), tl.arange(0, DS)
    total = tl.zeros((KS, BLOCK, DS), points.dtype.element_ty)
    count = tl.zeros((KS, BLOCK), tl.int32)
    start, step = tl.program_id(0).to(tl.int64) * BLOCK, tl.num_programs(0).to(tl.int64) * BLOCK
    for first in range(start, n, step):
        rows = first + tl.arange(0, BLOCK)
        inside = rows < n
        label = nearest(points, means, rows, inside, K, D)
        own = (label[None, :] == ks[:, None]) & inside[None, :]
        loaded = tl.load(points + rows[:, None] * D + ds[None, :], mask=inside[:, None] & (ds < D)[None, :], other=0)
        total += tl.where(own[:, :, None], loaded[None, :, :], 0)
        count += own.to(tl.int32)
    at = tl.program_id(0) * KS + ks
    tl.store(sums + at[:, None] * DS + ds[None, :], tl.sum(total, axis=1))
    tl.store(counts + at, tl.sum(count, axis=1))


def assign(X: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """The index of each point's nearest mean."""
    X, means = X.contiguous(), means.contiguous()
    (n, d), k = X.shape, means.shape[0]
    out = torch.empty(n, dtype=torch.int64, device=X.device)
    if n > 0:  # a grid may not be empty
        assign_kernel[(triton.cdiv(n, 512),)](X, means, out, n, k, D=d, BLOCK=512)
    return out


def sums(X: torch.Tensor, means: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum and the number of the points that are nearest to each mean."""
    X, means = X.contiguous(), means.contiguous()
    (n, d), k = X.shape, means.shape[0]
    # As plain numbers: rounding torch.compile's symbols would make very long expressions.
    ks, ds = triton.next_power_of_2(int(k)), triton.next_power_of_2(int(d))
    block = max(4096 // (ks * ds), 32)  # lanes' sums stay in registers
    programs = max(min(triton.cdiv(n, block), 2048), 1)
    partial = torch.empty(programs, ks, ds, dtype=X.dtype, device=X.device)
    counts = torch.empty(programs, ks, dtype=torch.int32, device=X.device)
    sums_kernel[(programs,)](X, means, partial, counts, n, k, D=d, BLOCK=block, KS=ks, DS=ds)
    total = partial.sum(0, dtype=torch.float64)[:k, :d].to(X.dtype).contiguous()
    return total, counts.sum(0, dtype=torch.int64)[:k].contiguous()
