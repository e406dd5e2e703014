"""fused-ssim (https://github.com/rahul-goel/fused-ssim) with opwright: in place of its module of pybind11 and
``setup.py``. It stands beside ``ssim.cu`` and ``ssim3d.cu`` of that repository, as ``ops.py``."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow

__all__ = ["fusedssim", "fusedssim3d", "fusedssim_backward", "fusedssim_backward3d"]

C1 = Annotated[float, ow.values(1e-4, 1e-4)]
C2 = Annotated[float, ow.values(9e-4, 9e-4)]
Image = Annotated[Float32[Tensor, "b c h w"], ow.values(0, 1)]
Volume = Annotated[Float32[Tensor, "b c d h w"], ow.values(0, 1)]
# What the backward needs: tensors without elements, if there will be none.
Kept = Float32[Tensor, "..."]
NOT_EMPTY = ["b >= 1", "h >= 1", "w >= 1"]  # the sources launch no grid without blocks


def windowed(x: Tensor) -> Tensor:
    """Weighted means around each element, by a Gaussian of 11 numbers in every direction, with zeros outside."""
    t = torch.arange(11, dtype=x.dtype, device=x.device) - 5
    g = torch.exp(-(t**2) / (2 * 1.5**2))
    g = g / g.sum()
    for axis in range(2, x.dim()):
        rows = x.movedim(axis, -1)
        means = torch.nn.functional.conv1d(rows.reshape(-1, 1, rows.shape[-1]), g[None, None], padding=5)
        x = means.reshape(rows.shape).movedim(-1, axis)
    return x


def forward(c1: float, c2: float, img1: Tensor, img2: Tensor, train: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The similarity, and its derivatives by the mean, the variance and the covariance of the first image."""
    mu1, mu2 = windowed(img1), windowed(img2)
    s1, s2, s12 = windowed(img1**2) - mu1**2, windowed(img2**2) - mu2**2, windowed(img1 * img2) - mu1 * mu2
    top1, top2, low1, low2 = 2 * mu1 * mu2 + c1, 2 * s12 + c2, mu1**2 + mu2**2 + c1, s1 + s2 + c2
    ssim = top1 * top2 / (low1 * low2)
    if not train:
        return ssim, *(img1.new_empty(0) for _ in range(3))
    by_mean = 2 * mu2 * (top2 - top1) / (low1 * low2) + 2 * mu1 * ssim * (1 / low2 - 1 / low1)
    return ssim, by_mean, -ssim / low2, 2 * top1 / (low1 * low2)


def backward(img1: Tensor, img2: Tensor, grad: Tensor, by_mean: Tensor, by_variance: Tensor, by_both: Tensor) -> Tensor:
    """The gradient of the first image."""
    means = windowed(grad * by_mean), windowed(grad * by_variance), windowed(grad * by_both)
    return means[0] + 2 * img1 * means[1] + img2 * means[2]


@ow.op("fused_ssim::fusedssim", where=NOT_EMPTY)
def fusedssim(
    C1: C1, C2: C2, img1: Image, img2: Image, train: bool
) -> tuple[Float32[Tensor, "b c h w"], Kept, Kept, Kept]:
    return forward(C1, C2, img1, img2, train)


@ow.op("fused_ssim::fusedssim_backward", where=NOT_EMPTY)
def fusedssim_backward(
    C1: C1, C2: C2, img1: Image, img2: Image, dL_dmap: Image, dm_dmu1: Image, dm_dsigma1_sq: Image, dm_dsigma12: Image
) -> Float32[Tensor, "b c h w"]:
    return backward(img1, img2, dL_dmap, dm_dmu1, dm_dsigma1_sq, dm_dsigma12)


@ow.op("fused_ssim::fusedssim3d", where=[*NOT_EMPTY, "d >= 1"])
def fusedssim3d(
    C1: C1, C2: C2, img1: Volume, img2: Volume, train: bool
) -> tuple[Float32[Tensor, "b c d h w"], Kept, Kept, Kept]:
    return forward(C1, C2, img1, img2, train)


@ow.op("fused_ssim::fusedssim_backward3d", where=[*NOT_EMPTY, "d >= 1"])
def fusedssim_backward3d(
    C1: C1, C2: C2, img1: Volume, img2: Volume, dL_dmap: Volume, dm_dmu1: Volume, dm_dsigma1_sq: Volume,
    dm_dsigma12: Volume,
) -> Float32[Tensor, "b c d h w"]:  # fmt: skip
    return backward(img1, img2, dL_dmap, dm_dmu1, dm_dsigma1_sq, dm_dsigma12)


def is_contiguous(C1, C2, img1, *_):
    return img1.is_contiguous()  # outputs get its strides, and are written as if they were contiguous


for operator in (fusedssim, fusedssim_backward):
    operator.cuda("ssim.cu", abi="aten", when=is_contiguous)
for operator in (fusedssim3d, fusedssim_backward3d):
    operator.cuda("ssim3d.cu", abi="aten", when=is_contiguous)
