"""The grid of pytorch_cluster (https://github.com/rusty1s/pytorch_cluster) with opwright: in place of ``csrc/grid.cpp``
(its dispatch and registration). It stands beside the folder ``csrc`` of that repository, as ``ops.py``."""

from __future__ import annotations

# ruff: noqa: F821  # names of dims
from typing import Annotated

import torch
from jaxtyping import Int64, Num
from torch import Tensor

import opwright as ow

__all__ = ["grid"]

Corner = Annotated[Num[Tensor, "d"], ow.values(0, 0)] | None
Far = Annotated[Num[Tensor, "d"], ow.values(8, 8)] | None


@ow.op("torch_cluster::grid")
def grid(
    pos: Annotated[Num[Tensor, "n *each"], ow.values(0, 8)],
    size: Annotated[Num[Tensor, "d"], ow.values(1, 3)],
    start: Corner,
    end: Far,
) -> Int64[Tensor, "n"]:
    """The number of the voxel in which each point lies."""
    pos = pos.reshape(pos.shape[0], pos[:1].numel())
    if pos.shape[1] != size.numel():
        raise ValueError("size needs an element for each coordinate of a point")
    start = pos.amin(0) if start is None else start
    end = pos.amax(0) if end is None else end
    voxels = ((end - start) / size).long() + 1
    before = torch.cat([torch.ones_like(voxels[:1]), voxels.cumprod(0)])[: size.shape[0]]
    return (((pos - start) / size).long() * before).sum(1)


@grid.samples
def points():
    for dims in (1, 2, 3):
        pos, size = torch.rand(50, dims) * 8, torch.full((dims,), 3.0)
        yield pos, size, None, None
        yield pos, size, torch.zeros(dims), torch.full((dims,), 8.0)
    yield torch.arange(6), torch.tensor([2]), None, None  # points that are numbers, and integers


grid.cpp("csrc/cpu/grid_cpu.cpp", entry="grid_cpu", abi="aten")
grid.cuda("csrc/cuda/grid_cuda.cu", entry="grid_cuda", abi="aten")
