"""wgmma, tensor maps and bulk copies on a GPU of compute capability 9.0: the simulator's own tests, on the hardware."""

from __future__ import annotations

import pytest
import torch

import opwright as ow
from tests.kernelsim.cuda import test_bulk_copies as copies
from tests.kernelsim.cuda import test_warpgroups as groups

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.nvrtc,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="it has no wgmma"
    ),
]


@pytest.mark.parametrize("k", [64, 192, 1024])
def test_a_pipelined_product(k: int) -> None:
    c, wanted = groups.matmul(groups.MATMUL, k, "cuda")
    assert torch.equal(c, wanted)


@pytest.mark.parametrize("swizzle", groups.BY_K)
def test_tiles_of_contiguous_rows(swizzle: int) -> None:
    c, wanted = groups.tiles(torch.bfloat16, swizzle, "cuda")
    assert torch.equal(c, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_products_of_other_types(dtype: torch.dtype) -> None:
    c, wanted = groups.tiles(dtype, 128, "cuda")
    assert torch.equal(c, wanted)


def test_products_of_whole_numbers() -> None:
    c, wanted = groups.whole_numbers("cuda")
    assert torch.equal(c, wanted)


def test_products_of_tf32_cut_their_operands() -> None:
    c, wanted = groups.tf32("cuda")
    torch.testing.assert_close(c, wanted, rtol=0, atol=1e-5)


def test_tiles_whose_columns_are_contiguous() -> None:
    c, wanted = groups.by_columns("cuda")
    assert torch.equal(c, wanted)


def test_a_matrix_in_registers() -> None:
    c, wanted = groups.from_registers(groups.FROM_REGISTERS, device="cuda")
    assert torch.equal(c, wanted)


@pytest.mark.parametrize("text", [copies.BOXES, copies.LIBCU], ids=["ptx", "libcu"])
def test_boxes_are_copied_as_far_as_they_lie_in_the_tensor(text: str) -> None:
    y, wanted = copies.copied(text, "cuda")
    assert torch.equal(y, wanted)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_a_box_of_three_dimensions_in_each_pattern(swizzle: int) -> None:
    y, wanted = copies.box_of_three_dimensions(swizzle, "cuda")
    assert torch.equal(y.cpu(), wanted.cpu())


def test_a_bulk_copy_to_global_memory() -> None:
    y = torch.zeros(256, device="cuda")
    ow.cuda_module(copies.STORED)["k"][1, 32](y)
    assert torch.equal(y.cpu(), torch.cat([torch.ones(1), torch.arange(1.0, 256)]))
