"""Elementwise addition: the smallest operator, in C++ and in Triton (plain and autotuned)."""

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow

__all__ = ["add"]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@ow.op("gallery::add")
def add(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """``x + y`` for two tensors of one shape and dtype; nothing is broadcast.

    The kernel of PyTorch's tutorial on user-defined Triton kernels
    (https://docs.pytorch.org/tutorials/recipes/torch_compile_user_defined_triton_kernel_tutorial.html).
    """
    return x + y


add.cpp("add.cpp", dtypes=FLOATS)
add.triton("add_triton.py", entry="add", dtypes=FLOATS)
add.triton("add_triton.py", entry="add_autotuned", name="triton_autotuned", dtypes=FLOATS)

# The derived gradient would be right too, but it would add first and copy: here there is nothing to compute.
add.register_autograd(lambda ctx, grad: (grad, grad))
