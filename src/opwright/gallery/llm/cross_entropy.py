"""Cross entropy with ignored labels, label smoothing and z-loss: forward and backward, in Triton."""

from typing import Annotated

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

import opwright as ow
from opwright.gallery.llm.floats import Floats

__all__ = ["IGNORED", "cross_entropy", "cross_entropy_backward"]

IGNORED = -100
Labels = Annotated[Int64[Tensor, " t"], ow.values(0, "v-1", also=(IGNORED,))]
Smoothing = Annotated[float, ow.values(0.0, 0.5)]
ZLoss = Annotated[float, ow.values(0.0, 0.01)]


@ow.op("llm::cross_entropy", where="1 <= v")
def cross_entropy(
    logits: Floats[Tensor, "t v"], labels: Labels, smoothing: Smoothing = 0.0, z_loss: ZLoss = 0.0
) -> tuple[Float32[Tensor, " t"], Annotated[Float32[Tensor, " t"], ow.saved_for_backward]]:
    """The loss of each token, 0 for the label -100; divide its sum by the number of others for a mean.

    ``(1 - smoothing) · (lse - x[label]) + smoothing · (lse - mean(x)) + z_loss · lse²``, where lse is the logarithm of
    the sum of exp(x).
    """
    wide = logits.float()
    lse = torch.logsumexp(wide, 1)
    picked = wide.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    loss = (1 - smoothing) * (lse - picked) + z_loss * lse * lse
    if smoothing > 0:
        loss = loss + smoothing * (lse - wide.mean(1))
    return torch.where(labels == IGNORED, 0, loss), lse


@ow.op("llm::cross_entropy_backward", where="1 <= v")
def cross_entropy_backward(
    grad: Float32[Tensor, " t"],
    logits: Floats[Tensor, "t v"],
    labels: Labels,
    lse: Float32[Tensor, " t"],
    smoothing: Smoothing = 0.0,
    z_loss: ZLoss = 0.0,
) -> Floats[Tensor, "t v"]:
    """The gradient of the logits."""
    shares = torch.exp(logits.float() - lse[:, None]) * (1 + 2 * z_loss * lse[:, None])
    one_hot = torch.arange(logits.shape[1], device=labels.device) == labels[:, None]
    change = shares - smoothing / logits.shape[1] - (1 - smoothing) * one_hot
    return torch.where((labels == IGNORED)[:, None], 0, grad[:, None] * change).to(logits.dtype)


def keep(ctx, inputs, output):
    logits, labels, ctx.smoothing, ctx.z_loss = inputs
    ctx.save_for_backward(logits, labels, output[1])


def gradient(ctx, grad):
    logits, labels, lse = ctx.saved_tensors
    return cross_entropy_backward(grad, logits, labels, lse, ctx.smoothing, ctx.z_loss), None, None, None


cross_entropy.register_autograd(gradient, setup_context=keep)
cross_entropy.triton("kernels/cross_entropy_triton.py", entry="cross_entropy")
cross_entropy_backward.triton("kernels/cross_entropy_triton.py", entry="cross_entropy_backward")
cross_entropy.sizes(t=(4096,), v=(32_000, 128_256))
cross_entropy_backward.sizes(t=(4096,), v=(32_000, 128_256))
