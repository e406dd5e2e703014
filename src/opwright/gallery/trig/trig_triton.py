"""Sine, cosine and the sine's gradient in Triton, for operators to launch (see ``__init__.py``).

Half precision is computed in float32, float64 as it is.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def widen(values):
    # tl.sin and tl.cos take float32 and float64.
    if values.dtype.primitive_bitwidth < 32:
        return values.to(tl.float32)
    else:  # noqa: RET505  # Triton 3.6 compiles a return after the `if` as well, and their types differ
        return values


@triton.jit
def sin_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    values = tl.load(x + offsets, mask=inside)
    tl.store(out + offsets, tl.sin(widen(values)), mask=inside)


@triton.jit
def cos_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    values = tl.load(x + offsets, mask=inside)
    tl.store(out + offsets, tl.cos(widen(values)), mask=inside)


@triton.jit
def sin_backward_kernel(grad, x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    slopes = tl.cos(widen(tl.load(x + offsets, mask=inside)))
    tl.store(out + offsets, tl.load(grad + offsets, mask=inside) * slopes, mask=inside)


def sin(x: torch.Tensor) -> torch.Tensor:
    """``sin(x)``, 1,024 elements a program."""
    x = x.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    n = out.numel()
    if n > 0:  # a grid may not be empty
        sin_kernel[(triton.cdiv(n, 1024),)](x, out, n, BLOCK=1024)
    return out


def cos(x: torch.Tensor) -> torch.Tensor:
    """``cos(x)``, 1,024 elements a program."""
    x = x.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    n = out.numel()
    if n > 0:
        cos_kernel[(triton.cdiv(n, 1024),)](x, out, n, BLOCK=1024)
    return out


def sin_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """``grad * cos(x)``, 1,024 elements a program."""
    grad, x = grad.contiguous(), x.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    n = out.numel()
    if n > 0:
        sin_backward_kernel[(triton.cdiv(n, 1024),)](grad, x, out, n, BLOCK=1024)
    return out


# Autotune above heuristics: EVEN is computed for each configuration's BLOCK. torch.compile cannot trace the other
# order, and opwright refuses it. `not` gives a bool if n is symbolic; `== 0` would give a symbol, which a
# configuration may not contain.
@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 512}, num_warps=4),
        triton.Config({"BLOCK": 1024}, num_warps=4),
        triton.Config({"BLOCK": 2048}, num_warps=8),
    ],
    key=[],
)
@triton.heuristics({"EVEN": lambda arguments: not arguments["n"] % arguments["BLOCK"]})
@triton.jit
def sin_kernel_heuristics(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:  # every block is full: nothing to mask
        tl.store(out + offsets, tl.sin(widen(tl.load(x + offsets))))
    else:
        inside = offsets < n
        tl.store(out + offsets, tl.sin(widen(tl.load(x + offsets, mask=inside))), mask=inside)


def sin_heuristics(x: torch.Tensor) -> torch.Tensor:
    """``sin(x)`` without masks if all blocks are full."""
    x = x.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    n = out.numel()
    if n > 0:
        sin_kernel_heuristics[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
    return out
