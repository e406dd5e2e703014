"""The cross entropy of a linear layer without all logits at once: chunks of tokens, in Triton and torch's products."""

from typing import Annotated

import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.gallery.llm.cross_entropy import IGNORED, Labels, Smoothing, ZLoss
from opwright.gallery.llm.floats import Floats

__all__ = ["linear_cross_entropy", "linear_cross_entropy_backward"]


@ow.op("llm::linear_cross_entropy", where="1 <= v")
def linear_cross_entropy(
    x: Floats[Tensor, "t d"],
    weight: Floats[Tensor, "v d"],
    labels: Labels,
    smoothing: Smoothing = 0.0,
    z_loss: ZLoss = 0.0,
) -> tuple[
    Float32[Tensor, ""],
    Annotated[Floats[Tensor, "t d"], ow.saved_for_backward],
    Annotated[Floats[Tensor, "v d"], ow.saved_for_backward],
]:
    """The sum of ``cross_entropy(x @ weight.t(), labels, smoothing, z_loss)``.

    The forward computes the gradients, too. Logits and their gradients are rounded to the dtype of x.
    """
    logits = (x @ weight.t()).float()
    lse = torch.logsumexp(logits, 1)
    one_hot = torch.arange(len(weight), device=labels.device) == labels[:, None]
    loss = (1 - smoothing) * (lse - torch.where(one_hot, logits, 0).sum(1)) + z_loss * lse * lse
    if smoothing > 0:
        loss = loss + smoothing * (lse - logits.mean(1))
    shares = torch.exp(logits - lse[:, None]) * (1 + 2 * z_loss * lse[:, None])
    change = shares - smoothing / len(weight) - (1 - smoothing) * one_hot
    change = torch.where((labels == IGNORED)[:, None], 0, change).to(x.dtype)
    return torch.where(labels == IGNORED, 0, loss).sum(), change @ weight, change.t() @ x


@ow.op("llm::linear_cross_entropy_backward")
def linear_cross_entropy_backward(
    grad: Float32[Tensor, ""], grad_x: Floats[Tensor, "t d"], grad_weight: Floats[Tensor, "v d"]
) -> tuple[Floats[Tensor, "t d"], Floats[Tensor, "v d"]]:
    """What the forward has computed, times the gradient of the loss."""
    return (grad * grad_x).to(grad_x.dtype), (grad * grad_weight).to(grad_weight.dtype)


def keep(ctx, inputs, output):
    ctx.save_for_backward(*output[1:])


def gradient(ctx, grad):
    grad_x, grad_weight = linear_cross_entropy_backward(grad, *ctx.saved_tensors)
    return grad_x, grad_weight, None, None, None


linear_cross_entropy.register_autograd(gradient, setup_context=keep)
linear_cross_entropy.triton("kernels/linear_cross_entropy_triton.py", entry="linear_cross_entropy")
linear_cross_entropy_backward.triton("kernels/linear_cross_entropy_triton.py", entry="linear_cross_entropy_backward")
linear_cross_entropy_backward.sizes(t=(4096,), v=(32_000, 131_072), d=(4096,))
linear_cross_entropy.sizes(t=(4096,), v=(32_000, 131_072), d=(4096,))
