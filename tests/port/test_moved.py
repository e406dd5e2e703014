"""The references of moved extensions (benchmarks/moved), beside autograd: their own tests need sources and a GPU."""

from __future__ import annotations

import importlib.util
import shutil

import pytest
import torch

import opwright as ow
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


def moved(name, monkeypatch):
    """The operators of an extension, without its sources, which are not here."""
    for language in ("cpp", "cuda"):
        monkeypatch.setattr(ow.Op, language, lambda *_, **__: None)
    spec = importlib.util.spec_from_file_location(f"moved_{name}", MOVED / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reference(operator):
    return operator.contract.function


def test_the_backwards_of_splines_are_derivatives(monkeypatch):
    spline = moved("spline_conv", monkeypatch)
    sizes, is_open = torch.tensor([5, 4]), torch.tensor([1, 0], dtype=torch.uint8)
    for degree in (1, 2, 3):
        pseudo = torch.rand(6, 2, dtype=torch.float64, requires_grad=True)
        basis, index = reference(spline.spline_basis)(pseudo, sizes, is_open, degree)
        torch.testing.assert_close(basis.sum(1), torch.ones(6, dtype=torch.float64))  # splines sum to one
        assert int(index.max()) < 20
        grad = torch.randn_like(basis)
        (expected,) = torch.autograd.grad(basis, pseudo, grad)
        found = reference(spline.spline_basis_backward)(grad, pseudo.detach(), sizes, is_open, degree)
        torch.testing.assert_close(found, expected)


def test_the_backward_of_areas_and_normals_is_the_derivative(monkeypatch):
    mesh = moved("pytorch3d", monkeypatch)
    verts, faces = torch.rand(7, 3, requires_grad=True), torch.randint(7, (5, 3)).sort(1).values
    faces[:, 1:] = (faces[:, :1] + torch.tensor([1, 2])) % 7
    areas, normals = reference(mesh.face_areas_normals_forward)(verts, faces)
    grads = torch.randn_like(areas), torch.randn_like(normals)
    (expected,) = torch.autograd.grad((areas, normals), verts, grads)
    found = reference(mesh.face_areas_normals_backward)(*grads, verts.detach(), faces)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_packed_rows_are_padded_and_packed_again(monkeypatch):
    mesh = moved("pytorch3d", monkeypatch)
    rows, first = torch.rand(6, 2), torch.tensor([0, 1, 1])
    padded = reference(mesh.packed_to_padded)(rows, first, 5)
    assert padded.shape == (3, 5, 2)
    assert (padded[1] == 0).all()
    assert torch.equal(padded[2], rows[1:])
    assert torch.equal(reference(mesh.padded_to_packed)(padded, first, 6), rows)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([0.5, 0.5, 1, 1, 0], [0.25, 0.5, 0.5, 1, 0], 0.5),
        ([5, 5, 2, 2, 30], [5, 5, 2, 2, 120], 1),  # the same square
        ([0, 0, 2, 2, 45], [0, 0, 2, 2, 0], 2**-0.5),  # they share a regular octagon
        ([0, 0, 1, 1, 10], [5, 5, 1, 1, 20], 0),
    ],
)
def test_the_overlap_of_turned_boxes(monkeypatch, one, other, expected):
    boxes = moved("detectron2", monkeypatch)
    found = reference(boxes.box_iou_rotated)(torch.tensor([one]).float(), torch.tensor([other]).float())
    torch.testing.assert_close(found, torch.tensor([[float(expected)]]))


def test_a_region_of_an_image_that_is_linear_has_its_values_and_a_gradient(monkeypatch):
    boxes = moved("detectron2", monkeypatch)
    rows, columns = torch.meshgrid(torch.arange(9.0), torch.arange(9.0), indexing="ij")
    image = (rows + 10 * columns).double()[None, None].requires_grad_()
    region = torch.tensor([[0, 4.5, 4.5, 4, 2, 0]], dtype=torch.float64)
    for ratio in (0, 1, 2):
        pooled = reference(boxes.roi_align_rotated_forward)(image, region, 1.0, 1, 2, ratio)
        torch.testing.assert_close(pooled[0, 0], torch.tensor([[4 + 10 * 3, 4 + 10 * 5]]).double())
        grad = torch.randn_like(pooled)
        (expected,) = torch.autograd.grad(pooled, image, grad)
        found = reference(boxes.roi_align_rotated_backward)(grad, region, 1.0, 1, 2, 1, 1, 9, 9, ratio)
        torch.testing.assert_close(found, expected)


def test_gathers_and_sums_undo_each_other(monkeypatch):
    rows = moved("scatter", monkeypatch)
    src, indptr = torch.randn(2, 3, 4, dtype=torch.float64), torch.tensor([[0, 2, 2, 5], [0, 0, 4, 5]])
    gathered = reference(rows.gather_csr)(src, indptr)
    assert torch.equal(gathered[0], src[0].repeat_interleave(torch.tensor([2, 0, 3]), 0))
    sums = reference(rows.segment_sum_csr)(gathered, indptr)
    torch.testing.assert_close(sums, src * indptr.diff()[..., None])
    index = rows.row_of_each(indptr)
    assert torch.equal(reference(rows.gather_coo)(src, index), gathered)
    torch.testing.assert_close(reference(rows.segment_sum_coo)(gathered, index, 3), sums)


def test_tests_are_copied_away_from_the_extension_as_it_was(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(MOVED.parent))
    ports_tests = importlib.import_module("ports_tests")
    source, copies = tmp_path / "repository", tmp_path / "copies"
    for file in (
        "tests/layers/test_it.py",
        "tests/common.py",
        "tests/data/large.bin",
        "its_package/__init__.py",
        "t.py",
    ):
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        (source / file).touch()
    copies.mkdir()
    ports_tests.copy_tests(source, "tests/layers/test_it.py", copies)
    ports_tests.copy_tests(source, "t.py", copies)
    found = {str(file.relative_to(copies)) for file in copies.rglob("*") if file.is_file()}
    assert found == {"tests/layers/test_it.py", "tests/common.py", "t.py"}
