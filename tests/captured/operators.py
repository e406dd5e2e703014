"""Operators whose calls are recorded."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

import opwright as ow


@ow.op("captured_tests::gather")
def gather(
    table: Float32[Tensor, "v d"], rows: Annotated[Int64[Tensor, " m"], ow.values(0, "v-1")], scale: float = 1.0
) -> Float32[Tensor, "m d"]:
    return table[rows] * scale


@gather.python
def only_small(table: Tensor, rows: Tensor, scale: float) -> Tensor:
    """Wrong where there are 37 rows, which only the recorded calls have."""
    out = table.index_select(0, rows) * scale
    return out + 1 if rows.numel() == 37 else out


def silu(input: Float32[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
    return input * input.sigmoid()


adopted = ow.adopt(torch.nn.functional.silu, reference=silu)


class Layer(torch.nn.Module):
    def forward(self, table: Tensor, rows: Tensor) -> Tensor:
        return torch.nn.functional.silu(gather(table, rows, 0.5))
