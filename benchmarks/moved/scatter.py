"""pytorch_scatter's gathers (https://github.com/rusty1s/pytorch_scatter) with opwright: in place of their dispatch,
gradients and registrations in ``csrc/segment_csr.cpp`` and ``csrc/segment_coo.cpp``. It stands beside the folder
``csrc`` of that repository, as ``ops.py``, with ``scatter.cpp`` and ``scatter.cu``."""

from __future__ import annotations

# names of dims
from typing import Annotated

import torch
from jaxtyping import Int64, Num
from torch import Tensor

import opwright as ow

__all__ = ["gather_coo", "gather_coo_out", "gather_csr", "gather_csr_out"]

Rows, Elements = Num[Tensor, "b rows k"], Num[Tensor, "b elements k"]
Starts = Annotated[Int64[Tensor, "b rows+1"], ow.inputs.offsets("elements")]
Drawn = Annotated[Int64[Tensor, "b rows+1"], ow.inputs.drawn_by(lambda shape, generator: starts(shape, generator))]
Index = Annotated[Int64[Tensor, "b elements"], ow.values(0, "rows-1", sorted=True)]
NOT_EMPTY = ["b >= 1", "rows >= 1", "k >= 1"]


def starts(shape, generator):
    """From 0 to one number of elements in each batch, never descending."""
    within = torch.randint(0, 2 * shape[-1] + 1, (*shape[:-1], max(shape[-1] - 2, 0)), generator=generator)
    first, last = torch.zeros(*shape[:-1], 1), torch.full((*shape[:-1], 1), 2 * shape[-1])
    return torch.cat([first, within.sort(-1).values, last], -1)


def row_of_each(indptr: Tensor) -> Tensor:
    """The row of each element, in each batch."""
    elements = torch.arange(int(indptr[0, -1]), device=indptr.device).repeat(indptr.shape[0], 1)
    return torch.searchsorted(indptr[:, 1:].contiguous(), elements, right=True)


def taken(src: Tensor, index: Tensor) -> Tensor:
    return src.gather(1, index[..., None].expand(*index.shape, src.shape[2]))


def summed(src: Tensor, index: Tensor, rows: int) -> Tensor:
    zeros = src.new_zeros(src.shape[0], rows, src.shape[2])
    return zeros.scatter_add(1, index[..., None].expand_as(src), src)


@ow.op("torch_scatter::gather_csr", where=NOT_EMPTY)
def gather_csr(src: Rows, indptr: Drawn) -> Elements:
    return taken(src, row_of_each(indptr))


@ow.op("torch_scatter::gather_csr_out", where=NOT_EMPTY)
def gather_csr_out(src: Rows, indptr: Starts, out: Annotated[Elements, ow.mutated]) -> None:
    out.copy_(taken(src, row_of_each(indptr)))


@ow.op("torch_scatter::segment_sum_csr_of", where=["b >= 1", "k >= 1", "n >= 2"])
def segment_sum_csr(
    src: Elements, indptr: Annotated[Int64[Tensor, "b n"], ow.inputs.offsets("elements")]
) -> Num[Tensor, "b n-1 k"]:
    return summed(src, row_of_each(indptr), indptr.shape[1] - 1)


@ow.op("torch_scatter::gather_coo", where=NOT_EMPTY)
def gather_coo(src: Rows, index: Index) -> Elements:
    return taken(src, index)


@ow.op("torch_scatter::gather_coo_out", where=NOT_EMPTY)
def gather_coo_out(src: Rows, index: Index, out: Annotated[Elements, ow.mutated]) -> None:
    out.copy_(taken(src, index))


@ow.op("torch_scatter::segment_sum_coo_of", where=["b >= 1", "k >= 1", "rows >= 1"])
def segment_sum_coo(src: Elements, index: Index, rows: Annotated[int, ow.values(1, 9)]) -> Num[Tensor, "b rows k"]:
    return summed(src, index, rows)


def context(ctx, inputs, output):
    src, place = inputs
    ctx.save_for_backward(place)
    ctx.rows = src.shape[1]


gather_csr.register_autograd(lambda ctx, grad: (segment_sum_csr(grad, *ctx.saved_tensors), None), setup_context=context)
gather_coo.register_autograd(
    lambda ctx, grad: (segment_sum_coo(grad, *ctx.saved_tensors, ctx.rows), None), setup_context=context
)

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)


def is_safe(src, places, *others):
    """The sources divide by the number of elements, and write into a contiguous copy of ``out``, which they drop."""
    return places.numel() > 0 and all(out.is_contiguous() for out in others if isinstance(out, Tensor))


for operator in (gather_csr, gather_csr_out, segment_sum_csr, gather_coo, gather_coo_out, segment_sum_coo):
    entry = operator.contract.name.removesuffix("_of")
    operator.cpp("scatter.cpp", entry=entry, abi="aten", dtypes=DTYPES, when=is_safe)
    operator.cuda("scatter.cu", entry=entry, abi="aten", dtypes=DTYPES, when=is_safe)
