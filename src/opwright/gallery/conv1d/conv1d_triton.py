"""1-D convolution in Triton: a program sums a block of outputs, tap by tap; neighbouring taps meet in the cache."""

import torch
import triton
import triton.language as tl


@triton.jit
def conv1d_kernel(x, k, out, n, m, BLOCK: tl.constexpr, SUM: tl.constexpr):
    # Offsets are 64 bits wide: a tensor may have more than 2³¹ elements.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=SUM)
    for j in range(m):
        values = tl.load(x + offsets + j, mask=offsets + j < n, other=0.0).to(SUM)
        total += values * tl.load(k + j).to(SUM)
    tl.store(out + offsets, total, mask=offsets < n)


def conv1d(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Half types are summed in float32 and rounded once."""
    x, k = x.contiguous(), k.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    n = out.numel()
    if n > 0:  # a grid may not be empty
        sums = tl.float64 if x.dtype == torch.float64 else tl.float32
        conv1d_kernel[(triton.cdiv(n, 1024),)](x, k, out, n, k.numel(), BLOCK=1024, SUM=sums)
    return out
