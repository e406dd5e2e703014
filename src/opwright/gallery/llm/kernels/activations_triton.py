"""Elementwise kernels over rows, which may have gaps between them; and softmax, a row in a program."""

import torch
import triton
import triton.language as tl

from opwright.gallery.llm.floats import row_launch, rows_of

BLOCK = 1024


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def gate_part(x, ACTIVATION: tl.constexpr):
    # What multiplies x: sigmoid(x), Φ(x), or Φ(x) by tanh, which is a sigmoid.
    if ACTIVATION == "silu":
        part = sigmoid(x)
    elif ACTIVATION == "gelu":
        part = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
    else:
        part = sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return part


@triton.jit
def part_slope(x, part, ACTIVATION: tl.constexpr):
    if ACTIVATION == "silu":
        steep = part * (1 - part)
    elif ACTIVATION == "gelu":
        steep = tl.exp(-x * x / 2) * 0.3989422804014327
    else:
        steep = part * (1 - part) * 1.5957691216057308 * (1 + 0.134145 * x * x)
    return steep


@triton.jit
def glu_kernel(gate, up, out, n, gate_stride, up_stride, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    across = tl.cdiv(n, BLOCK)
    row, columns = (tl.program_id(0) // across).to(tl.int64), (tl.program_id(0) % across).to(tl.int64) * BLOCK
    columns += tl.arange(0, BLOCK)
    inside = columns < n
    x = tl.load(gate + row * gate_stride + columns, mask=inside, other=0).to(tl.float32)
    y = tl.load(up + row * up_stride + columns, mask=inside, other=0).to(tl.float32)
    tl.store(out + row * n + columns, x * gate_part(x, ACTIVATION) * y, mask=inside)


@triton.jit
def glu_backward_kernel(
    grad, gate, up, grad_gate, grad_up, n, grad_stride, gate_stride, up_stride,
    ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(n, BLOCK)
    row, columns = (tl.program_id(0) // across).to(tl.int64), (tl.program_id(0) % across).to(tl.int64) * BLOCK
    columns += tl.arange(0, BLOCK)
    inside = columns < n
    above = tl.load(grad + row * grad_stride + columns, mask=inside, other=0).to(tl.float32)
    x = tl.load(gate + row * gate_stride + columns, mask=inside, other=0).to(tl.float32)
    y = tl.load(up + row * up_stride + columns, mask=inside, other=0).to(tl.float32)
    part = gate_part(x, ACTIVATION)
    slope = part + x * part_slope(x, part, ACTIVATION)
    tl.store(grad_gate + row * n + columns, above * y * slope, mask=inside)
    tl.store(grad_up + row * n + columns, above * (x * part), mask=inside)


@triton.jit
def softmax_kernel(x, out, n, stride, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = columns < n
    values = tl.load(x + row * stride + columns, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * n + columns, powers / tl.sum(powers, 0), mask=inside)


@triton.jit
def softmax_backward_kernel(grad, result, out, n, grad_stride, stride, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = columns < n
    above = tl.load(grad + row * grad_stride + columns, mask=inside, other=0).to(tl.float32)
    shares = tl.load(result + row * stride + columns, mask=inside, other=0).to(tl.float32)
    tl.store(out + row * n + columns, shares * (above - tl.sum(above * shares, 0)), mask=inside)


def as_rows(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Matrices: of one row, if no tensor has gaps."""
    if all(t.is_contiguous() for t in tensors):
        return [t.reshape(1, -1) for t in tensors]
    return [rows_of(t) for t in tensors]


def glu(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if out.numel():
        x, y = as_rows(gate, up)
        glu_kernel[(len(x) * triton.cdiv(x.shape[1], BLOCK),)](
            x, y, out, x.shape[1], x.stride(0), y.stride(0), activation, BLOCK=BLOCK
        )
    return out


def glu_backward(
    grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_gate, grad_up = (torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) for _ in range(2))
    if grad.numel():
        above, x, y = as_rows(grad, gate, up)
        glu_backward_kernel[(len(x) * triton.cdiv(x.shape[1], BLOCK),)](
            above, x, y, grad_gate, grad_up, x.shape[1], above.stride(0), x.stride(0), y.stride(0), activation,
            BLOCK=BLOCK,
        )  # fmt: skip
    return grad_gate, grad_up


def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        rows = rows_of(x)
        softmax_kernel[(len(rows),)](rows, out, rows.shape[1], rows.stride(0), **row_launch(x.shape[-1]))
    return out


def softmax_backward(grad: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    out = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
    if out.numel():
        above, shares = rows_of(grad), rows_of(result)
        softmax_backward_kernel[(len(above),)](
            above, shares, out, above.shape[1], above.stride(0), shares.stride(0), **row_launch(grad.shape[-1])
        )
    return out
