"""Deformable-DETR's attention (https://github.com/fundamentalvision/Deformable-DETR) with opwright: in place of its
module of pybind11 and ``setup.py``. It stands beside the folder ``src`` of its ``models/ops``, as ``ops.py``. Its
source is for an older ATen and does not compile with the present one, so ``opwright port`` rewrites it first."""

from __future__ import annotations

# ruff: noqa: F821  # names of dims
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Float, Int64
from torch import Tensor

import opwright as ow

__all__ = ["ms_deform_attn_backward", "ms_deform_attn_forward"]

Value = Float[Tensor, "b s h c"]
Shapes = Annotated[Int64[Tensor, "levels 2"], ow.values(1, 1)]  # levels of one pixel; samples have larger ones
Starts = Annotated[Int64[Tensor, "levels"], ow.inputs.drawn_by(lambda shape, generator: torch.arange(shape[0]))]
Locations = Annotated[Float[Tensor, "b q h levels p 2"], ow.values(0, 1)]
Weights = Float[Tensor, "b q h levels p"]
Step = Annotated[int, ow.values(1, 1)]
ALL_LEVELS = ["levels <= s", "b >= 1", "q >= 1", "h >= 1", "c >= 1", "levels >= 1", "p >= 1"]


def attention(value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of bilinear samples, at places from 0 to 1 of each level, zero outside."""
    b, _, h, c = value.shape
    q = locations.shape[1]
    result = value.new_zeros(b, q, h, c)
    for level, ((height, width), start) in enumerate(zip(shapes.tolist(), starts.tolist(), strict=True)):
        image = value[:, start : start + height * width].permute(0, 2, 3, 1).reshape(b * h, c, height, width)
        places = locations[:, :, :, level].permute(0, 2, 1, 3, 4).reshape(b * h, q, -1, 2)
        sampled = torch.nn.functional.grid_sample(image, 2 * places - 1, align_corners=False)
        sampled = sampled.reshape(b, h, c, q, -1).permute(0, 3, 1, 4, 2)
        result = result + (sampled * weights[:, :, :, level, :, None]).sum(3)
    return result.reshape(b, q, h * c)


@ow.op("deformable_detr::ms_deform_attn_forward", where=ALL_LEVELS)
def ms_deform_attn_forward(
    value: Value, shapes: Shapes, starts: Starts, locations: Locations, weights: Weights, im2col_step: Step
) -> Float[Tensor, "b q h*c"]:
    return attention(value, shapes, starts, locations, weights)


@ow.op("deformable_detr::ms_deform_attn_backward", where=ALL_LEVELS)
def ms_deform_attn_backward(
    value: Value, shapes: Shapes, starts: Starts, locations: Locations, weights: Weights,
    grad_output: Float[Tensor, "b q h*c"], im2col_step: Step,
) -> tuple[Value, Float[Tensor, "b q h levels p 2"], Weights]:  # fmt: skip
    def of(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return attention(value, shapes, starts, locations, weights)

    return torch.func.vjp(of, value, locations, weights)[1](grad_output)


for operator in (ms_deform_attn_forward, ms_deform_attn_backward):
    direction = operator.contract.name.rpartition("_")[2]
    operator.cuda(
        "src/cuda/ms_deform_attn_cuda.stable.cu",
        entry=f"ms_deform_attn_cuda_{direction}_stable",
        options=(f"-I{Path(__file__).parent / 'src'}",),
        dtypes=(torch.float32, torch.float64),
        when=lambda *arguments: all(x.is_contiguous() for x in arguments if isinstance(x, Tensor)),
    )
