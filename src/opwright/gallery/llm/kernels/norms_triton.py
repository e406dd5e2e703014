"""A row in a program, in registers. In the backward, each program adds up its rows' part of the weights' gradients."""

import torch
import triton
import triton.language as tl

from opwright.gallery.llm.floats import float32_like, row_launch, rows_of

# Each adds up a part of the weights' gradients: two for each multiprocessor of a large GPU.
MOST_PROGRAMS = 264


@triton.jit
def rms_norm_kernel(
    x, residual, weight, out, total, rstd, n, x_stride, residual_stride, eps, BLOCK: tl.constexpr, ADDS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0)
    if ADDS:
        values += tl.load(residual + row * residual_stride + columns, mask=inside, other=0)
        tl.store(total + row * n + columns, values, mask=inside)
    values = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / n + eps)
    tl.store(rstd + row, scale)
    normed = (values * scale).to(out.dtype.element_ty)
    tl.store(out + row * n + columns, normed * tl.load(weight + columns, mask=inside, other=0), mask=inside)


@triton.jit
def rms_norm_backward_kernel(
    grad, x, weight, rstd, added, grad_x, partial, rows, n, grad_stride, x_stride, added_stride,
    BLOCK: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    scales = tl.load(weight + columns, mask=inside, other=0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        at = tl.cast(row, tl.int64)
        above = tl.load(grad + at * grad_stride + columns, mask=inside, other=0).to(tl.float32)
        scale = tl.load(rstd + at)
        normed = tl.load(x + at * x_stride + columns, mask=inside, other=0).to(tl.float32) * scale
        scaled = above * scales
        result = scale * (scaled - normed * (tl.sum(scaled * normed, 0) / n))
        if ADDS:
            result += tl.load(added + at * added_stride + columns, mask=inside, other=0).to(tl.float32)
        tl.store(grad_x + at * n + columns, result, mask=inside)
        total += above * normed
    tl.store(partial + tl.program_id(0) * n + columns, total, mask=inside)


@triton.jit
def layer_norm_kernel(x, weight, bias, out, mean, rstd, n, x_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0).to(tl.float32)
    middle = tl.sum(values, 0) / n
    centred = tl.where(inside, values - middle, 0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / n + eps)
    tl.store(mean + row, middle)
    tl.store(rstd + row, scale)
    scales = tl.load(weight + columns, mask=inside, other=0).to(tl.float32)
    shift = tl.load(bias + columns, mask=inside, other=0).to(tl.float32)
    tl.store(out + row * n + columns, centred * scale * scales + shift, mask=inside)


@triton.jit
def layer_norm_backward_kernel(
    grad, x, weight, mean, rstd, grad_x, of_weight, of_bias, rows, n, grad_stride, x_stride, BLOCK: tl.constexpr
):
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    scales = tl.load(weight + columns, mask=inside, other=0).to(tl.float32)
    weights, biases = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        at = tl.cast(row, tl.int64)
        above = tl.load(grad + at * grad_stride + columns, mask=inside, other=0).to(tl.float32)
        values = tl.load(x + at * x_stride + columns, mask=inside, other=0).to(tl.float32)
        scale = tl.load(rstd + at)
        normed = tl.where(inside, (values - tl.load(mean + at)) * scale, 0)
        scaled = above * scales
        along = normed * (tl.sum(scaled * normed, 0) / n)
        tl.store(grad_x + at * n + columns, scale * (scaled - tl.sum(scaled, 0) / n - along), mask=inside)
        weights += above * normed
        biases += above
    tl.store(of_weight + tl.program_id(0) * n + columns, weights, mask=inside)
    tl.store(of_bias + tl.program_id(0) * n + columns, biases, mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    out, rstd = torch.empty(x.shape, dtype=x.dtype, device=x.device), float32_like(x, *x.shape[:-1])
    rows, weight = rows_of(x), weight.contiguous()
    if out.numel():
        rms_norm_kernel[(len(rows),)](
            rows,
            rows,
            weight,
            out,
            out,
            rstd,
            rows.shape[1],
            rows.stride(0),
            0,
            eps,
            ADDS=False,
            **row_launch(x.shape[-1]),
        )
    return out, rstd


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    out, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    return out, total, add_rms_norm_into(out, total, x, residual, weight, eps)


def add_rms_norm_(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    if x.is_contiguous() and residual.is_contiguous():
        add_rms_norm_into(x, residual, x, residual, weight, eps)
    else:
        out, total, _ = add_rms_norm(x, residual, weight, eps)
        x.copy_(out)
        residual.copy_(total)


def add_rms_norm_into(
    out: torch.Tensor, total: torch.Tensor, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    rows, others, rstd = rows_of(x), rows_of(residual), float32_like(x, *x.shape[:-1])
    if out.numel():
        rms_norm_kernel[(len(rows),)](
            rows, others, weight.contiguous(), out, total, rstd, rows.shape[1], rows.stride(0), others.stride(0), eps,
            ADDS=True, **row_launch(x.shape[-1]),
        )  # fmt: skip
    return rstd


def rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor, added: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n, above, values = x.shape[-1], rows_of(grad), rows_of(x)
    others = above if added is None else rows_of(added)
    programs = min(len(values), MOST_PROGRAMS)
    partial = float32_like(x, programs, n)
    if grad_x.numel():
        rms_norm_backward_kernel[(programs,)](
            above, values, weight.contiguous(), rstd.contiguous(), others, grad_x, partial, len(values), n,
            above.stride(0), values.stride(0), others.stride(0), ADDS=added is not None, **row_launch(n),
        )  # fmt: skip
    return grad_x, partial.sum(0).to(weight.dtype)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, rstd = float32_like(x, *x.shape[:-1]), float32_like(x, *x.shape[:-1])
    rows = rows_of(x)
    if out.numel():
        layer_norm_kernel[(len(rows),)](
            rows, weight.contiguous(), bias.contiguous(), out, mean, rstd, rows.shape[1], rows.stride(0), eps,
            **row_launch(x.shape[-1]),
        )  # fmt: skip
    return out, mean, rstd


def layer_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n, above, values = x.shape[-1], rows_of(grad), rows_of(x)
    programs = min(len(values), MOST_PROGRAMS)
    of_weight, of_bias = float32_like(x, programs, n), float32_like(x, programs, n)
    if grad_x.numel():
        layer_norm_backward_kernel[(programs,)](
            above, values, weight.contiguous(), mean.contiguous(), rstd.contiguous(), grad_x, of_weight, of_bias,
            len(values), n, above.stride(0), values.stride(0), **row_launch(n),
        )  # fmt: skip
    return grad_x, of_weight.sum(0).to(weight.dtype), of_bias.sum(0).to(weight.dtype)
