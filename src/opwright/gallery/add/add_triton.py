"""Elementwise addition in Triton: with one block size, and with the fastest of several."""

import torch
import triton
import triton.language as tl


@triton.jit
def widen(values):
    # Half types are added in float32 and rounded once, as torch does (and Triton's interpreter cannot add bfloat16).
    if values.dtype.primitive_bitwidth < 32:
        return values.to(tl.float32)
    else:  # noqa: RET505  # Triton 3.6 compiles a return after the `if` as well, and their types differ
        return values


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    # Offsets are 64 bits wide: a tensor may have more than 2³¹ elements.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    total = widen(tl.load(x + offsets, mask=inside)) + widen(tl.load(y + offsets, mask=inside))
    tl.store(out + offsets, total, mask=inside)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x + y``, 1,024 elements per program."""
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    n = out.numel()
    if n > 0:  # a grid may not be empty
        add_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    return out


# The same kernel, tuned. (As a decorator, @triton.autotune(...) goes above @triton.jit.) The key is empty: the
# best configuration depends on the dtype, which is always part of the key, and hardly on the size; with the size
# in the key, every new size would be tuned.
add_kernel_autotuned = triton.autotune(
    configs=[
        triton.Config({"BLOCK": 512}, num_warps=4, num_stages=2),
        triton.Config({"BLOCK": 1024}, num_warps=4, num_stages=3),
        triton.Config({"BLOCK": 2048}, num_warps=8, num_stages=3),
        triton.Config({"BLOCK": 4096}, num_warps=8, num_stages=4),
    ],
    key=[],
)(add_kernel)


def add_autotuned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x + y`` with the block size, warps and stages that were fastest on the first call."""
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    n = out.numel()
    if n > 0:
        add_kernel_autotuned[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n)
    return out
