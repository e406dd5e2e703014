"""Sine and cosine in C++ and in Triton, with the two ways to write a gradient: an operator, and a function."""

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow

__all__ = ["cos", "sin", "sin_backward"]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@ow.op("gallery::sin")
def sin(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """The sine of every element (radians); infinities give NaN.

    The operator of PyTorch's tutorial on ``triton_op``
    (https://docs.pytorch.org/tutorials/recipes/torch_compile_user_defined_triton_kernel_tutorial.html).
    """
    return torch.sin(x)


@ow.op("gallery::cos")
def cos(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """The cosine of every element (radians); infinities give NaN."""
    return torch.cos(x)


sin.cpp("trig.cpp", entry="sine", dtypes=FLOATS)
sin.triton("trig_triton.py", entry="sin", dtypes=FLOATS)
sin.triton("trig_triton.py", entry="sin_heuristics", name="triton_heuristics", dtypes=FLOATS)

cos.cpp("trig.cpp", entry="cosine", dtypes=FLOATS)
cos.triton("trig_triton.py", entry="cos", dtypes=FLOATS)


# The sine's gradient is an operator with kernels of its own: one pass over memory.


@ow.op("gallery::sin_backward")
def sin_backward(grad: Float[Tensor, "*n"], x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """The gradient of the sine at ``x``, given that of its result."""
    return grad * torch.cos(x)


sin_backward.cpp("trig.cpp", entry="sine_backward", dtypes=FLOATS)
sin_backward.triton("trig_triton.py", entry="sin_backward", dtypes=FLOATS)
sin.register_autograd(sin_backward)


# The cosine's is a function, which is less to write. It runs the sine's kernels, and then a product of torch's.


def save_x(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def cos_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return -grad * sin(x)


cos.register_autograd(cos_backward, setup_context=save_x)


@sin.register_flops
@cos.register_flops
def flops(x):
    """One for each element, as torch counts any elementwise function."""
    return x.numel()
