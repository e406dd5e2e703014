"""pytorch_spline_conv (https://github.com/rusty1s/pytorch_spline_conv) with opwright: in place of ``csrc/*.cpp`` (its
dispatch, gradients and registrations) and ``setup.py``. It stands beside the folder ``csrc`` of that repository, as
``ops.py``."""

from __future__ import annotations

# ruff: noqa: F821  # names of dims
from typing import Annotated

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

import opwright as ow

__all__ = ["spline_basis", "spline_weighting"]

NOT_MANY = ["d >= 1", "(degree+1)**d <= 1024"]  # of the products of splines
Pseudo = Annotated[Float[Tensor, "e d"], ow.values(0, 1)]
Sizes = Annotated[Int64[Tensor, "d"], ow.values(4, 6)]
IsOpen = Annotated[UInt8[Tensor, "d"], ow.values(0, 1)]
Degree = Annotated[int, ow.values(1, 3)]
Rows = Annotated[Int64[Tensor, "e s"], ow.values(0, "k-1")]


def pieces(v: Tensor, degree: int) -> list[Tensor]:
    """The uniform B-splines of a degree that are not zero in an interval, at a place from 0 to 1 in it: de Boor's
    recursion."""
    splines = [torch.ones_like(v)]
    for p in range(1, degree + 1):
        zero = torch.zeros_like(v)
        before = [zero, *splines, zero]
        splines = [((v + p - k) * before[k] + (k + 1 - v) * before[k + 1]) / p for k in range(p + 1)]
    return splines


def slopes(v: Tensor, degree: int) -> list[Tensor]:
    """The derivatives of these."""
    zero = torch.zeros_like(v)
    before = [zero, *pieces(v, degree - 1), zero]
    return [before[k] - before[k + 1] for k in range(degree + 1)]


def of_all_knots(columns: list[Tensor]) -> Tensor:
    """For each choice of a spline in each dim, the product of their columns; the first dim counts fastest."""
    result = columns[0]
    for column in columns[1:]:
        result = (column[:, :, None] * result[:, None, :]).flatten(1)
    return result


def within(pseudo: Tensor, scale: Tensor) -> list[Tensor]:
    """In each dim, where in their interval the places lie, from 0 to 1."""
    return [v - v.floor() for v in (pseudo * scale).unbind(1)]


@ow.op("torch_spline_conv::spline_basis", where=NOT_MANY)
def spline_basis(
    pseudo: Pseudo, kernel_size: Sizes, is_open_spline: IsOpen, degree: Degree
) -> tuple[Float[Tensor, "e (degree+1)**d"], Int64[Tensor, "e (degree+1)**d"]]:
    scale = kernel_size - degree * is_open_spline.long()
    basis = of_all_knots([torch.stack(pieces(v, degree), 1) for v in within(pseudo, scale)])
    taken = torch.arange(degree + 1, device=pseudo.device)
    index, before = pseudo.new_zeros(len(pseudo), 1, dtype=torch.long), torch.ones_like(kernel_size[0])
    for at, size in zip((pseudo * scale).long().unbind(1), kernel_size, strict=True):
        rows = (at[:, None] + taken) % size * before
        index, before = (rows[:, :, None] + index[:, None, :]).flatten(1), before * size
    return basis, index


@ow.op("torch_spline_conv::spline_basis_backward", where=NOT_MANY)
def spline_basis_backward(
    grad_basis: Float[Tensor, "e (degree+1)**d"],
    pseudo: Pseudo,
    kernel_size: Sizes,
    is_open_spline: IsOpen,
    degree: Degree,
) -> Float[Tensor, "e d"]:
    scale = kernel_size - degree * is_open_spline.long()
    splines = [torch.stack(pieces(v, degree), 1) for v in within(pseudo, scale)]
    steep = [torch.stack(slopes(v, degree), 1) for v in within(pseudo, scale)]
    by_dim = [of_all_knots([*splines[:d], steep[d], *splines[d + 1 :]]) for d in range(len(splines))]
    return torch.stack([(grad_basis * slope).sum(1) for slope in by_dim], 1) * scale


@ow.op("torch_spline_conv::spline_weighting")
def spline_weighting(
    x: Float[Tensor, "e i"], weight: Float[Tensor, "k i o"], basis: Float[Tensor, "e s"], weight_index: Rows
) -> Float[Tensor, "e o"]:
    return torch.einsum("eso,es->eo", torch.einsum("esio,ei->eso", weight[weight_index], x), basis)


@ow.op("torch_spline_conv::spline_weighting_backward_x")
def backward_x(
    grad_out: Float[Tensor, "e o"], weight: Float[Tensor, "k i o"], basis: Float[Tensor, "e s"], weight_index: Rows
) -> Float[Tensor, "e i"]:
    return torch.einsum("eo,es,esio->ei", grad_out, basis, weight[weight_index])


@ow.op("torch_spline_conv::spline_weighting_backward_weight")
def backward_weight(
    grad_out: Float[Tensor, "e o"],
    x: Float[Tensor, "e i"],
    basis: Float[Tensor, "e s"],
    weight_index: Annotated[Int64[Tensor, "e s"], ow.values(0, "kernel_size-1")],
    kernel_size: Annotated[int, ow.values(1, 9)],
) -> Float[Tensor, "kernel_size i o"]:
    taken = x.new_zeros(x.shape[0], kernel_size).scatter_add(1, weight_index, basis)
    return torch.einsum("ek,ei,eo->kio", taken, x, grad_out)


@ow.op("torch_spline_conv::spline_weighting_backward_basis")
def backward_basis(
    grad_out: Float[Tensor, "e o"], x: Float[Tensor, "e i"], weight: Float[Tensor, "k i o"], weight_index: Rows
) -> Float[Tensor, "e s"]:
    return torch.einsum("eo,esio,ei->es", grad_out, weight[weight_index], x)


def basis_context(ctx, inputs, output):
    pseudo, kernel_size, is_open_spline, ctx.degree = inputs
    ctx.save_for_backward(pseudo, kernel_size, is_open_spline)
    ctx.mark_non_differentiable(output[1])


def basis_gradient(ctx, grad, _):
    return spline_basis_backward(grad, *ctx.saved_tensors, ctx.degree), None, None, None


def weighting_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def weighting_gradient(ctx, grad):
    x, weight, basis, index = ctx.saved_tensors
    of_x, of_weight, of_basis, _ = ctx.needs_input_grad
    return (
        backward_x(grad, weight, basis, index) if of_x else None,
        backward_weight(grad, x, basis, index, weight.shape[0]) if of_weight else None,
        backward_basis(grad, x, weight, index) if of_basis else None,
        None,
    )


spline_basis.register_autograd(basis_gradient, setup_context=basis_context)
spline_weighting.register_autograd(weighting_gradient, setup_context=weighting_context)

FUNCTIONS = {
    spline_basis: ("basis", "spline_basis_fw"),
    spline_basis_backward: ("basis", "spline_basis_bw"),
    spline_weighting: ("weighting", "spline_weighting_fw"),
    backward_x: ("weighting", "spline_weighting_bw_x"),
    backward_weight: ("weighting", "spline_weighting_bw_weight"),
    backward_basis: ("weighting", "spline_weighting_bw_basis"),
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def are_contiguous(*arguments):
    """The sources read some of their arguments by strides, and others as if they were contiguous: past their end."""
    return all(x.is_contiguous() for x in arguments if isinstance(x, Tensor))


for operator, (file, function) in FUNCTIONS.items():
    cpu, cuda = f"csrc/cpu/{file}_cpu.cpp", f"csrc/cuda/{file}_cuda.cu"
    operator.cpp(cpu, entry=f"{function}_cpu", abi="aten", dtypes=DTYPES, when=are_contiguous)
    operator.cuda(cuda, entry=f"{function}_cuda", abi="aten", dtypes=DTYPES[:2], when=are_contiguous)
