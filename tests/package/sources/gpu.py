"""An operator to be shipped with a host function in CUDA C++, for programs without Python."""

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow


@ow.op("shipped_gpu::scale")
def scale(x: Float[Tensor, "*n"], factor: float) -> Float[Tensor, "*n"]:
    return x * factor


scale.cuda("gpu.cu", dtypes=[torch.float32])
