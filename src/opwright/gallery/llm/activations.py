"""Gated activations (SwiGLU, GeGLU) and softmax: in Triton, forward also in CUDA C++, softmax also in Mojo."""

import math
from typing import Annotated, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

import opwright as ow
from opwright.gallery.llm.floats import CPP_TYPE, Floats, cuda_block, cuda_width, is_whole, rows_of

__all__ = ["glu", "glu_backward", "softmax", "softmax_backward"]


# -- gated activations -------------------------------------------------------------------------------------------

Activation = Literal["silu", "gelu", "gelu_tanh"]


@ow.op("llm::glu")
def glu(gate: Floats[Tensor, "*n"], up: Floats[Tensor, "*n"], activation: Activation = "silu") -> Floats[Tensor, "*n"]:
    """``activation(gate) · up``: SwiGLU with silu, GeGLU with gelu or its approximation by tanh."""
    return (activated(gate.float(), activation) * up.float()).to(gate.dtype)


@ow.op("llm::glu_backward")
def glu_backward(
    grad: Floats[Tensor, "*n"], gate: Floats[Tensor, "*n"], up: Floats[Tensor, "*n"], activation: Activation = "silu"
) -> tuple[Floats[Tensor, "*n"], Floats[Tensor, "*n"]]:
    """The gradients of the gate and of what it multiplies."""
    wide, above = gate.float(), grad.float()
    grad_gate = above * up.float() * slope(wide, activation)
    return grad_gate.to(gate.dtype), (above * activated(wide, activation)).to(gate.dtype)


def activated(x: Tensor, activation: str) -> Tensor:
    if activation == "silu":
        return F.silu(x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def slope(x: Tensor, activation: str) -> Tensor:
    """The derivative of the activation."""
    if activation == "silu":
        part = torch.sigmoid(x)
        return part * (1 + x * (1 - part))
    if activation == "gelu":
        return torch.special.ndtr(x) + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    inner, steepness = x + 0.044715 * x**3, 1 + 3 * 0.044715 * x * x
    part = torch.sigmoid(math.sqrt(8 / math.pi) * inner)  # (1 + tanh) / 2
    return part + x * part * (1 - part) * math.sqrt(8 / math.pi) * steepness


def keep_for_glu(ctx, inputs, output):
    gate, up, ctx.activation = inputs
    ctx.save_for_backward(gate, up)


def glu_gradient(ctx, grad):
    gate, up = ctx.saved_tensors
    return *glu_backward(grad, gate, up, ctx.activation), None


glu.register_autograd(glu_gradient, setup_context=keep_for_glu)
glu.triton("kernels/activations_triton.py", entry="glu")
glu_backward.triton("kernels/activations_triton.py", entry="glu_backward")
in_cuda = ow.cuda_module("kernels/activations.cu")
THREADS, ROUNDS = 256, 2  # as in activations.cu


@glu.cuda(name="cuda")
def _(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if out.numel():
        has_gaps = not (gate.is_contiguous() and up.is_contiguous())
        x, y = (rows_of(t) if has_gaps else t.reshape(1, -1) for t in (gate, up))
        rows, n = x.shape
        width = cuda_width(n, x, y, out.view(rows, n))
        blocks = ow.cdiv(n, THREADS * width * ROUNDS)
        number = get_args(Activation).index(activation)
        kernel = in_cuda[f"glu<{CPP_TYPE[x.dtype]}, {width}, {ROUNDS}, {number}>"]
        kernel[rows * blocks, THREADS](x, y, out, n, blocks, x.stride(0), y.stride(0))
    return out


glu.sizes(n=((4096, 14336),))
glu_backward.sizes(n=((4096, 14336),))


# -- softmax -----------------------------------------------------------------------------------------------------


@ow.op("llm::softmax")
def softmax(x: Floats[Tensor, "*b n"]) -> Floats[Tensor, "*b n"]:
    """The softmax over the last dim. Its backward reads the result, which is rounded to the dtype of x, as torch's."""
    return x.softmax(-1)


@ow.op("llm::softmax_backward")
def softmax_backward(
    grad: Floats[Tensor, "*b n"], result: Annotated[Floats[Tensor, "*b n"], ow.values(0, 1)]
) -> Floats[Tensor, "*b n"]:
    """Its gradient, from its result."""
    above, shares = grad.float(), result.float()
    return (shares * (above - (above * shares).sum(-1, keepdim=True))).to(grad.dtype)


def keep_result(ctx, inputs, output):
    ctx.save_for_backward(output)


def softmax_gradient(ctx, grad):
    return softmax_backward(grad, *ctx.saved_tensors)


softmax.register_autograd(softmax_gradient, setup_context=keep_result)
softmax.triton("kernels/activations_triton.py", entry="softmax", when=is_whole)
softmax_backward.triton("kernels/activations_triton.py", entry="softmax_backward", when=is_whole)
softmax.mojo("kernels/softmax.mojo")


@softmax.cuda(name="cuda", when=is_whole)
def _(x: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        rows, n = rows_of(x), x.shape[-1]
        width = cuda_width(n, rows, out.view(-1, n))
        rounds, grid, block = cuda_block(len(rows), n, width)
        kernel = in_cuda[f"softmax<{CPP_TYPE[x.dtype]}, {width}, {rounds}>"]
        kernel[grid, block](rows, out, len(rows), n, rows.stride(0))
    return out


softmax.sizes(b=(4096, 16_384, 8192), n=(4096, 4096, 16_384))
softmax_backward.sizes(b=(4096, 16_384, 8192), n=(4096, 4096, 16_384))
