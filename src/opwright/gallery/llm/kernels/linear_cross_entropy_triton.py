"""Chunks of tokens: torch's matrix products, and a kernel that replaces logits by their gradient.

The method is that of Liger-Kernel (https://github.com/linkedin/Liger-Kernel): a chunk's logits live until its gradients
are computed, in the forward.
"""

import torch
import triton
import triton.language as tl

from opwright.gallery.llm.floats import float32_like

BLOCK = 4096
IGNORED = tl.constexpr(-100)
MOST_LOGITS = 1 << 27  # 256 MiB in bfloat16


@triton.jit(do_not_specialize=["first"])
def loss_and_gradient_kernel(logits, labels, loss, first, v, labels_stride, smoothing, z_loss, BLOCK: tl.constexpr):
    # The logits are those of a chunk of tokens; it begins at `first`. Slices that a kernel writes would be copied by
    # torch.compile.
    logits += tl.program_id(0).to(tl.int64) * v
    row = tl.program_id(0).to(tl.int64) + first
    label = tl.load(labels + row * labels_stride)
    if label == IGNORED:
        for start in range(0, v, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            tl.store(logits + columns, tl.zeros((BLOCK,), logits.dtype.element_ty), mask=columns < v)
        tl.store(loss + row, 0.0)
    else:
        largest, total, plain = -float("inf"), 0.0, 0.0
        for start in range(0, v, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            values = tl.load(logits + columns, mask=columns < v, other=-float("inf")).to(tl.float32)
            new = tl.maximum(largest, tl.max(values, 0))
            shift = tl.where(tl.abs(new) == float("inf"), 0.0, new)
            total = total * tl.exp(largest - shift) + tl.sum(tl.exp(values - shift), 0)
            plain += tl.sum(tl.where(columns < v, values, 0), 0)
            largest = new
        whole = largest + tl.log(total)
        picked = tl.load(logits + label).to(tl.float32)
        result = (1 - smoothing) * (whole - picked) + z_loss * whole * whole
        if smoothing > 0:
            result += smoothing * (whole - plain / v)
        tl.store(loss + row, result)
        for start in range(0, v, BLOCK):  # each program reads its row before it writes it
            columns = start + tl.arange(0, BLOCK)
            values = tl.load(logits + columns, mask=columns < v, other=0).to(tl.float32)
            change = tl.exp(values - whole) * (1 + 2 * z_loss * whole) - smoothing / v
            change = tl.where(columns == label, change - (1 - smoothing), change)
            tl.store(logits + columns, change, mask=columns < v)


@triton.jit
def scaled_kernel(x, scale, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n).to(tl.float32) * tl.load(scale), mask=at < n)


def chunk_of(v: int, d: int) -> int:
    """Tokens whose logits take no more memory than the weight, or 256 MiB. The fewer chunks, the less is added up."""
    most = max(min(d, MOST_LOGITS // v), 64)
    return most - most % 128 if most > 128 else most


def linear_cross_entropy(
    x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, smoothing: float, z_loss: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    (t, d), v = x.shape, len(weight)
    loss = float32_like(x, t)
    grad_x, grad_weight = (torch.empty(s, dtype=x.dtype, device=x.device) for s in (x.shape, weight.shape))
    if not t or not d:
        grad_weight.zero_()
    for start in range(0, t, chunk_of(v, d)):
        end = min(start + chunk_of(v, d), t)
        part = x[start:end]
        logits = part @ weight.t()
        loss_and_gradient_kernel[(end - start,)](
            logits, labels, loss, start, v, labels.stride(0), smoothing, z_loss, BLOCK=BLOCK, num_warps=8
        )
        torch.mm(logits, weight, out=grad_x[start:end])
        torch.addmm(grad_weight, logits.t(), part, beta=1 if start else 0, out=grad_weight)
    return loss.sum(), grad_x, grad_weight


def linear_cross_entropy_backward(
    grad: torch.Tensor, grad_x: torch.Tensor, grad_weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return scaled(grad_x, grad), scaled(grad_weight, grad)


def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    out, n = torch.empty(x.shape, dtype=x.dtype, device=x.device), x.numel()
    if n:
        scaled_kernel[(triton.cdiv(n, BLOCK),)](x.contiguous(), scale, out, n, BLOCK=BLOCK, num_warps=8)
    return out
