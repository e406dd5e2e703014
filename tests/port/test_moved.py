"""The references of moved extensions (benchmarks/moved), beside autograd: their own tests need sources and a GPU."""

from __future__ import annotations

import importlib.util
import shutil

import pytest
import torch

from tests import REPOSITORY

MOVED = REPOSITORY / "benchmarks" / "moved"
# In place of the extension's own sources.
SOURCES = """
#include <torch/extension.h>
std::tuple<torch::Tensor, torch::Tensor, torch::Tensor, torch::Tensor>
fusedssim{of}(float C1, float C2, torch::Tensor &img1, torch::Tensor &img2, bool train) {}
torch::Tensor fusedssim_backward{of}(float C1, float C2, torch::Tensor &img1, torch::Tensor &img2,
    torch::Tensor &dL_dmap, torch::Tensor &dm_dmu1, torch::Tensor &dm_dsigma1_sq, torch::Tensor &dm_dsigma12) {}
"""


@pytest.fixture(scope="module")
def fused_ssim(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fused_ssim")
    for dims, file in (("", "ssim.cu"), ("3d", "ssim3d.cu")):
        (folder / file).write_text(SOURCES.replace("{of}", dims))
    shutil.copy(MOVED / "fused_ssim.py", folder / "moved_fused_ssim.py")
    spec = importlib.util.spec_from_file_location("moved_fused_ssim", folder / "moved_fused_ssim.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("shape", [(2, 3, 7, 5), (1, 2, 5, 6, 7)])
def test_the_backward_is_the_derivative_of_the_forward(fused_ssim, shape):
    x, y = (torch.rand(shape, dtype=torch.float64) for _ in range(2))
    grad = torch.randn(shape, dtype=torch.float64)
    x.requires_grad_()
    similarity, *kept = fused_ssim.forward(1e-4, 9e-4, x, y, True)
    (expected,) = torch.autograd.grad(similarity, x, grad)
    found = fused_ssim.backward(x.detach(), y, grad, *(t.detach() for t in kept))
    torch.testing.assert_close(found, expected)


def test_equal_images_are_similar_and_others_are_not(fused_ssim):
    x, y = torch.rand(1, 1, 24, 24), torch.rand(1, 1, 24, 24)
    same = fused_ssim.fusedssim(1e-4, 9e-4, x, x.clone(), False)
    torch.testing.assert_close(same[0], torch.ones_like(x), atol=1e-3, rtol=0)
    assert [t.numel() for t in same[1:]] == [0, 0, 0]
    assert fused_ssim.fusedssim(1e-4, 9e-4, x, y, False)[0].mean() < 0.5


def test_kernels_are_attached_for_contiguous_images_only(fused_ssim):
    for operator in (fused_ssim.fusedssim, fused_ssim.fusedssim_backward3d):
        (kernel,) = operator.kernels.values()
        assert kernel.spec.devices == ("cuda",)
        rank = 4 if operator is fused_ssim.fusedssim else 5
        image = torch.rand((2,) * rank)
        assert kernel.when(1e-4, 9e-4, image, image, *([image] * 4 if rank == 5 else [True]))
        assert not kernel.when(1e-4, 9e-4, image.mT, image, *([image] * 4 if rank == 5 else [True]))
