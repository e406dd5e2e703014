"""Elementwise addition: the smallest operator, in CUDA C++ (nine kernels), C++ and Triton (plain and autotuned)."""

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow

__all__ = ["add"]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
THREADS = 256


@ow.op("gallery::add")
def add(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """``x + y`` for two tensors of one shape and dtype; nothing is broadcast.

    The kernel of PyTorch's tutorial on user-defined Triton kernels
    (https://docs.pytorch.org/tutorials/recipes/torch_compile_user_defined_triton_kernel_tutorial.html), and the
    elementwise kernels that CUDA courses begin with.
    """
    return x + y


cuda = ow.cuda_module("add.cu")
CPP_TYPE = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


def attach_cuda(name: str, dtype: torch.dtype, load: int, per_thread: int) -> None:
    """Attach the kernel whose threads add ``per_thread`` elements and load ``load`` of them at once."""
    kernel = cuda[f"add<{CPP_TYPE[dtype]}, {load}, {per_thread}>"]
    aligned_to = load * dtype.itemsize

    def is_aligned(x: Tensor, y: Tensor) -> bool:
        return x.data_ptr() % aligned_to == 0 and y.data_ptr() % aligned_to == 0

    @add.cuda(name=name, dtypes=[dtype], when=is_aligned if load > 1 else None)
    def _(x: Tensor, y: Tensor) -> Tensor:
        x, y = x.contiguous(), y.contiguous()
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        n = out.numel()
        kernel[ow.cdiv(n, THREADS * per_thread), THREADS](x, y, out, n)
        return out


# The first applicable kernel runs, so the widest loads come first.
attach_cuda("f32x4", torch.float32, load=4, per_thread=4)
attach_cuda("f32", torch.float32, load=1, per_thread=1)
attach_cuda("f16x8_pack", torch.float16, load=8, per_thread=8)
attach_cuda("f16x8", torch.float16, load=2, per_thread=8)
attach_cuda("f16x2", torch.float16, load=2, per_thread=2)
attach_cuda("f16", torch.float16, load=1, per_thread=1)
attach_cuda("bf16x8_pack", torch.bfloat16, load=8, per_thread=8)
attach_cuda("bf16x2", torch.bfloat16, load=2, per_thread=2)
attach_cuda("bf16", torch.bfloat16, load=1, per_thread=1)

add.cpp("add.cpp", dtypes=FLOATS)
add.triton("add_triton.py", entry="add", dtypes=FLOATS)
add.triton("add_triton.py", entry="add_autotuned", name="triton_autotuned", dtypes=FLOATS)

# The derived gradient would be correct too, but it would add and copy first. This one computes nothing.
add.register_autograd(lambda ctx, grad: (grad, grad))
