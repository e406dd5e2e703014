"""extension-cpp (https://github.com/pytorch/extension-cpp) with opwright: in place of its schemas, fakes, gradients,
registrations and ``setup.py``. It stands beside the folder ``extension_cpp`` of that repository, as ``ops.py``."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow

__all__ = ["myadd_out", "mymul", "mymuladd"]

CPU, CUDA = "extension_cpp/csrc/muladd.cpp", "extension_cpp/csrc/cuda/muladd.cu"


@ow.op("extension_cpp::mymuladd")
def mymuladd(a: Float32[Tensor, "*n"], b: Float32[Tensor, "*n"], c: float) -> Float32[Tensor, "*n"]:
    return a * b + c


@ow.op("extension_cpp::mymul")
def mymul(a: Float32[Tensor, "*n"], b: Float32[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
    return a * b


@ow.op("extension_cpp::myadd_out")
@torch.no_grad()  # what it writes has no gradient
def myadd_out(
    a: Float32[Tensor, "*n"], b: Float32[Tensor, "*n"], out: Annotated[Float32[Tensor, "*n"], ow.mutated]
) -> None:
    out.copy_(a + b)


def setup_context(ctx, inputs, output):
    a, b, _ = inputs
    ctx.save_for_backward(a, b)


def backward(ctx, grad):
    a, b = ctx.saved_tensors
    of_a, of_b, _ = ctx.needs_input_grad
    return mymul(grad, b) if of_a else None, mymul(grad, a) if of_b else None, None


mymuladd.register_autograd(backward, setup_context=setup_context)


def is_contiguous(a, b, out):
    return out.is_contiguous()  # the sources refuse others


mymuladd.cpp(CPU, entry="extension_cpp::mymuladd_cpu", abi="aten")
mymul.cpp(CPU, entry="extension_cpp::mymul_cpu", abi="aten")
myadd_out.cpp(CPU, entry="extension_cpp::myadd_out_cpu", abi="aten", when=is_contiguous)
mymuladd.cuda(CUDA, entry="extension_cpp::mymuladd_cuda", abi="aten")
mymul.cuda(CUDA, entry="extension_cpp::mymul_cuda", abi="aten")
myadd_out.cuda(CUDA, entry="extension_cpp::myadd_out_cuda", abi="aten", when=is_contiguous)
