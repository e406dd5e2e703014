"""RMSNorm (also in CUDA C++ and C++), RMSNorm of a sum with the residual, and LayerNorm, in Triton."""

from typing import Annotated

import torch
import torch.nn.functional as F
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.gallery.llm.floats import (
    CPP_TYPE,
    Eps,
    Floats,
    cuda_block,
    cuda_width,
    float32_like,
    is_whole,
    rows_of,
)

__all__ = ["add_rms_norm", "add_rms_norm_", "layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward"]


# -- RMSNorm ---------------------------------------------------------------------------------------------------


@ow.op("llm::rms_norm", where="1 <= n")
def rms_norm(
    x: Floats[Tensor, "*b n"], weight: Floats[Tensor, " n"], eps: Eps = 1e-6
) -> tuple[Floats[Tensor, "*b n"], Annotated[Float32[Tensor, "*b"], ow.saved_for_backward]]:
    """``x / sqrt(mean(x²) + eps) · weight`` over the last dim, as Llama has it. For the backward, 1 / the root."""
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(-1) + eps)
    return (wide * rstd[..., None]).to(x.dtype) * weight, rstd


@ow.op("llm::rms_norm_backward", where="1 <= n")
def rms_norm_backward(
    grad: Floats[Tensor, "*b n"],
    x: Floats[Tensor, "*b n"],
    weight: Floats[Tensor, " n"],
    rstd: Annotated[Float32[Tensor, "*b"], ow.values(1e-2, 1e3)],
    added: Floats[Tensor, "*b n"] | None = None,
) -> tuple[Floats[Tensor, "*b n"], Floats[Tensor, " n"]]:
    """The gradients of x and of the weight. ``added`` is another gradient of x, which is added to the first."""
    normed, scaled = x.float() * rstd[..., None], grad.float() * weight.float()
    grad_x = rstd[..., None] * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
    if added is not None:
        grad_x = grad_x + added.float()
    grad_weight = (grad.float() * normed).reshape(-1, x.shape[-1]).sum(0)
    return grad_x.to(x.dtype), grad_weight.to(weight.dtype)


def keep_for_rms_norm(ctx, inputs, output):
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output[1])


def rms_norm_gradient(ctx, grad):
    return *rms_norm_backward(grad, *ctx.saved_tensors), None


rms_norm.register_autograd(rms_norm_gradient, setup_context=keep_for_rms_norm)
rms_norm.triton("kernels/norms_triton.py", entry="rms_norm", when=is_whole)
rms_norm_backward.triton("kernels/norms_triton.py", entry="rms_norm_backward", when=is_whole)
rms_norm.cpp("kernels/norms.cpp")
in_cuda = ow.cuda_module("kernels/norms.cu")


@rms_norm.cuda(name="cuda", when=is_whole)
def _(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    out, rstd = torch.empty(x.shape, dtype=x.dtype, device=x.device), float32_like(x, *x.shape[:-1])
    if out.numel():
        rows, weight, n = rows_of(x), weight.contiguous(), x.shape[-1]
        width = cuda_width(n, rows, weight[None], out.view(-1, n))
        rounds, grid, block = cuda_block(len(rows), n, width)
        kernel = in_cuda[f"rms_norm<{CPP_TYPE[x.dtype]}, {width}, {rounds}>"]
        kernel[grid, block](rows, weight, out, rstd, len(rows), n, rows.stride(0), eps)
    return out, rstd


# -- the same of a sum -------------------------------------------------------------------------------------------


@ow.op("llm::add_rms_norm", where="1 <= n")
def add_rms_norm(
    x: Floats[Tensor, "*b n"], residual: Floats[Tensor, "*b n"], weight: Floats[Tensor, " n"], eps: Eps = 1e-6
) -> tuple[Floats[Tensor, "*b n"], Floats[Tensor, "*b n"], Annotated[Float32[Tensor, "*b"], ow.saved_for_backward]]:
    """``rms_norm(x + residual)`` and the sum, which the next block adds to. The sum is rounded before its norm."""
    total = x + residual
    wide = total.float()
    rstd = torch.rsqrt(wide.square().mean(-1) + eps)
    return (wide * rstd[..., None]).to(x.dtype) * weight, total, rstd


def keep_for_add_rms_norm(ctx, inputs, output):
    ctx.set_materialize_grads(False)  # the last sum of a model has no gradient of its own
    _, total, rstd = output
    ctx.save_for_backward(total, inputs[2], rstd)


def add_rms_norm_gradient(ctx, grad, grad_total):
    if grad is None:
        return grad_total, grad_total, None, None
    total, weight, rstd = ctx.saved_tensors
    grad_x, grad_weight = rms_norm_backward(grad, total, weight, rstd, grad_total)
    return grad_x, grad_x, grad_weight, None


add_rms_norm.register_autograd(add_rms_norm_gradient, setup_context=keep_for_add_rms_norm)
add_rms_norm.triton("kernels/norms_triton.py", entry="add_rms_norm", when=is_whole)


@ow.op("llm::add_rms_norm_", where="1 <= n")
@torch.no_grad()
def add_rms_norm_(
    x: Annotated[Floats[Tensor, "*b n"], ow.mutated],
    residual: Annotated[Floats[Tensor, "*b n"], ow.mutated],
    weight: Floats[Tensor, " n"],
    eps: Eps = 1e-6,
) -> None:
    """In place, without a gradient, as servers call it: the sum goes to ``residual``, its norm to ``x``."""
    residual.add_(x)
    x.copy_(F.rms_norm(residual.float(), (x.shape[-1],), eps=eps).to(x.dtype) * weight)


add_rms_norm_.triton("kernels/norms_triton.py", entry="add_rms_norm_", when=is_whole)


# -- LayerNorm ---------------------------------------------------------------------------------------------------


@ow.op("llm::layer_norm", where="1 <= n")
def layer_norm(
    x: Floats[Tensor, "*b n"], weight: Floats[Tensor, " n"], bias: Floats[Tensor, " n"], eps: Eps = 1e-5
) -> tuple[
    Floats[Tensor, "*b n"],
    Annotated[Float32[Tensor, "*b"], ow.saved_for_backward],
    Annotated[Float32[Tensor, "*b"], ow.saved_for_backward],
]:
    """``(x - mean) / sqrt(variance + eps) · weight + bias`` over the last dim."""
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    rstd = torch.rsqrt((wide - mean).square().mean(-1, keepdim=True) + eps)
    out = (wide - mean) * rstd * weight.float() + bias.float()
    return out.to(x.dtype), mean.squeeze(-1), rstd.squeeze(-1)


@ow.op("llm::layer_norm_backward", where="1 <= n")
def layer_norm_backward(
    grad: Floats[Tensor, "*b n"],
    x: Floats[Tensor, "*b n"],
    weight: Floats[Tensor, " n"],
    mean: Float32[Tensor, "*b"],
    rstd: Annotated[Float32[Tensor, "*b"], ow.values(1e-2, 1e3)],
) -> tuple[Floats[Tensor, "*b n"], Floats[Tensor, " n"], Floats[Tensor, " n"]]:
    """The gradients of x, of the weight and of the bias."""
    normed, scaled = (x.float() - mean[..., None]) * rstd[..., None], grad.float() * weight.float()
    along = (scaled * normed).mean(-1, keepdim=True)
    grad_x = rstd[..., None] * (scaled - scaled.mean(-1, keepdim=True) - normed * along)
    rows = grad.float().reshape(-1, x.shape[-1])
    grad_weight, grad_bias = (rows * normed.reshape(rows.shape)).sum(0), rows.sum(0)
    return grad_x.to(x.dtype), grad_weight.to(weight.dtype), grad_bias.to(weight.dtype)


def keep_for_layer_norm(ctx, inputs, output):
    x, weight, _, _ = inputs
    ctx.save_for_backward(x, weight, *output[1:])


def layer_norm_gradient(ctx, grad):
    return *layer_norm_backward(grad, *ctx.saved_tensors), None


layer_norm.register_autograd(layer_norm_gradient, setup_context=keep_for_layer_norm)
layer_norm.triton("kernels/norms_triton.py", entry="layer_norm", when=is_whole)
layer_norm_backward.triton("kernels/norms_triton.py", entry="layer_norm_backward", when=is_whole)

for operator in (rms_norm, rms_norm_backward, add_rms_norm, add_rms_norm_, layer_norm, layer_norm_backward):
    operator.sizes(b=(4096, 16_384, 8192), n=(4096, 4096, 16_384))
