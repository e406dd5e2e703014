"""The operator of cell.cpp."""

from __future__ import annotations

import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow


@ow.op("port_cell::forward", where=["parts == 2"])
def forward(
    input: Float32[Tensor, "b i"],
    weights: Float32[Tensor, "2*s s+i"],
    bias: Float32[Tensor, " 2*s"],
    state: Float32[Tensor, "b s"],
    parts: int,
    slope: float,
) -> tuple[Float32[Tensor, "b s"], Float32[Tensor, " b"]]:
    gates = torch.addmm(bias, torch.cat([state, input], 1), weights.t()).chunk(parts, 1)
    gate = torch.sigmoid(gates[0])
    candidate = torch.nn.functional.elu(gates[1], slope) + gates[1].clamp(0, 1) - 2
    sums = (candidate * slope).sum(1)
    if sums.numel():
        sums = torch.cat([candidate.sum()[None] * 2.5, sums[1:]])
    return (1 - gate) * gate * candidate, sums


forward.cpp("cell.cpp", entry="cell::forward", abi="aten")
