"""A program reads a row of logits once, in blocks, with the largest so far."""

import torch
import triton
import triton.language as tl

from opwright.gallery.llm.floats import float32_like, rows_of

BLOCK = 4096
IGNORED = tl.constexpr(-100)


@triton.jit
def cross_entropy_kernel(logits, labels, loss, lse, v, stride, labels_stride, smoothing, z_loss, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
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
    tl.store(lse + row, whole)
    label = tl.load(labels + row * labels_stride)
    if label == IGNORED:
        tl.store(loss + row, 0.0)
    else:
        picked = tl.load(logits + label).to(tl.float32)
        result = (1 - smoothing) * (whole - picked) + z_loss * whole * whole
        if smoothing > 0:
            result += smoothing * (whole - plain / v)
        tl.store(loss + row, result)


@triton.jit
def cross_entropy_backward_kernel(
    grad, logits, labels, lse, out, v, grad_stride, stride, labels_stride, lse_stride, smoothing, z_loss,
    BLOCK: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(v, BLOCK)
    row = (tl.program_id(0) // across).to(tl.int64)
    columns = tl.program_id(0) % across * BLOCK + tl.arange(0, BLOCK)
    inside = columns < v
    label = tl.load(labels + row * labels_stride)
    if label == IGNORED:
        tl.store(out + row * v + columns, tl.zeros((BLOCK,), out.dtype.element_ty), mask=inside)
    else:
        whole = tl.load(lse + row * lse_stride)
        values = tl.load(logits + row * stride + columns, mask=inside, other=0).to(tl.float32)
        change = tl.exp(values - whole) * (1 + 2 * z_loss * whole) - smoothing / v
        change = tl.where(columns == label, change - (1 - smoothing), change)
        tl.store(out + row * v + columns, tl.load(grad + row * grad_stride) * change, mask=inside)


def cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float, z_loss: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = rows_of(logits)
    loss, lse = float32_like(logits, len(logits)), float32_like(logits, len(logits))
    if len(logits):
        cross_entropy_kernel[(len(logits),)](
            logits, labels, loss, lse, logits.shape[1], logits.stride(0), labels.stride(0), smoothing, z_loss,
            BLOCK=BLOCK, num_warps=8,
        )  # fmt: skip
    return loss, lse


def cross_entropy_backward(
    grad: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor, lse: torch.Tensor, smoothing: float, z_loss: float
) -> torch.Tensor:
    logits = rows_of(logits)
    out = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    if len(logits):
        cross_entropy_backward_kernel[(len(logits) * triton.cdiv(logits.shape[1], BLOCK),)](
            grad, logits, labels, lse, out, logits.shape[1], grad.stride(0), logits.stride(0), labels.stride(0),
            lse.stride(0), smoothing, z_loss, BLOCK=BLOCK, num_warps=8,
        )  # fmt: skip
    return out
