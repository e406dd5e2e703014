"""A 1-D convolution: in Mojo (CPU and GPU), C++, CUDA C++, Triton and NumPy."""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

import opwright as ow

__all__ = ["conv1d"]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
THREADS = 256


@ow.op("gallery::conv1d")
def conv1d(x: Float[Tensor, "n"], k: Float[Tensor, "m"]) -> Float[Tensor, "n"]:
    """``out[i] = Σ_j x[i + j] · k[j]``, with zeros past the end of ``x``; ``k`` has at least one tap.

    The operator of Modular's tutorial on custom operators for PyTorch
    (https://docs.modular.com/max/develop/custom-kernels-pytorch/).
    """
    # One zero more than the taps reach: torch takes no input that is shorter than the kernel.
    padded = F.pad(x, (0, k.shape[0]))
    return F.conv1d(padded[None, None], k[None, None])[0, 0, : x.shape[0]]


conv1d.mojo("conv1d.mojo", dtypes=FLOATS)
conv1d.mojo(
    "conv1d.mojo", entry="conv1d_gpu", name="mojo_gpu", devices=["cuda"], dtypes=FLOATS, alignment=16,
    prebuilt="prebuilt", grid=lambda x, k: ow.cdiv(x.nbytes, 2 * 16 * THREADS), block=THREADS,
)  # fmt: skip
