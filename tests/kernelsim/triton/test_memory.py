"""What a simulated kernel may access: tiles of descriptors, its arguments, and what launchers pass parts of."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton.tools.tensor_descriptor")

import triton
from triton.tools import tensor_descriptor as descriptors

from kernelsim.errors import FindingError
from tests.kernelsim.loading import simulated
from tests.kernelsim.triton import kernels

pytestmark = [pytest.mark.triton, pytest.mark.compiler]


def test_tiles_read_zeros_outside_of_the_tensor_and_write_nothing_there() -> None:
    x, out = torch.randn(40, 36), torch.full((41, 36), 7.0)
    with simulated(seed=1):
        kernels.tiles[(3,)](x, out[:40], 40, 36, B=16)
    assert torch.equal(out[:40], x * 2)
    assert (out[40] == 7).all()


def test_descriptors_of_the_host() -> None:
    x, total, out = torch.randn(40, 36), torch.ones(16, 16), torch.empty(16, 16)
    whole, rows = (descriptors.TensorDescriptor.from_tensor(x, [n, 16]) for n in (16, 1))
    with simulated():
        kernels.tiles_from_the_host[(1,)](
            whole, descriptors.TensorDescriptor.from_tensor(total, [16, 16]), rows, out, B=16
        )
    torch.testing.assert_close(total, 1 + x[:16, 4:20] + 40)
    assert torch.equal(out, x[:16, 3:19].flip(0))


def test_a_descriptor_of_memory_that_tma_cannot_take_is_misaligned() -> None:
    x, out = torch.randn(41, 36), torch.zeros(40, 36)
    with simulated(), pytest.raises(FindingError, match="misaligned") as raised:
        kernels.tiles[(3,)](x.view(-1)[1 : 40 * 36 + 1].view(40, 36), out, 40, 36, B=16)
    assert raised.value.findings[0].source_line.startswith("source = tl.make_tensor_descriptor(x")


def test_an_access_through_one_argument_that_lands_in_another_is_out_of_bounds() -> None:
    both = torch.randn(128)
    x, y = both[:64], both[64:]
    with simulated(), pytest.raises(FindingError, match="out-of-bounds") as raised:
        kernels.beyond_into_another[(1,)](x, y, torch.empty(64), 64, B=64)
    (found,) = raised.value.findings
    assert found.message == "reads 4 bytes just past the end of x (float32 [64])"


def test_a_launcher_may_pass_a_part_of_what_it_was_given_or_has_allocated() -> None:
    given = torch.randn(128)
    for packed in (given, given.clone()):
        out = torch.empty(64)
        with simulated(given=[given]):
            kernels.gate[(1,)](packed[:64], out, 64, B=64)
        assert torch.equal(out, packed[:64] * packed[64:])
        with simulated(), pytest.raises(FindingError, match="out-of-bounds"):
            kernels.gate[(1,)](packed[:64], out, 64, B=64)
    with simulated(given=[given[:64]]), pytest.raises(FindingError, match="out-of-bounds"):
        kernels.gate[(1,)](given[:64], out, 64, B=64)


def test_branches_that_name_their_values_alike() -> None:
    x, y = torch.arange(4.0), torch.arange(4.0)
    with simulated():
        kernels.branches_after_a_return[(2,)](x, y, 4, B=8)
    assert x.tolist() == [1, 2, 3, 4]
    assert y.tolist() == [0, 2, 4, 6]


def test_a_branch_with_a_return_beside_a_loop() -> None:
    x, out = torch.randn(4, 16), torch.zeros(4, 16)
    with simulated(seed=1):
        kernels.loop_in_a_branch_with_a_return[(4,)](x, out, 3, B=16)
    torch.testing.assert_close(out, torch.stack([x[:3].sum(0), x[1:3].sum(0), x[2] * 2, torch.zeros(16)]))


@pytest.mark.slow
def test_device_print_prints(run_python: Any) -> None:
    done = run_python(
        "import torch, kernelsim\nfrom tests.kernelsim.triton import kernels\n"
        "with kernelsim.triton_launches():\n    kernels.prints[(1,)](torch.tensor([1.5, 2.5]), B=2)\n"
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("pid")]
    assert lines == ["pid (0, 0, 0) element 0 x is: 1.5", "pid (0, 0, 0) element 1 x is: 2.5"]


@pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9), reason="Triton has no block pointers since 3.9"
)
def test_block_pointers() -> None:
    a, b, out = torch.randn(19, 40), torch.randn(40, 35), torch.empty(19, 35)
    with simulated():
        kernels.product_by_block_pointers[(2, 3)](a, b, out, 19, 35, 40, CHECKED=(0, 1), B=16)
    torch.testing.assert_close(out, a @ b)
    with simulated(), pytest.raises(FindingError, match="race") as raised:
        kernels.product_by_block_pointers[(2, 3)](a, b, out, 19, 35, 40, CHECKED=(0,), B=16)
    assert raised.value.findings[0].source_line.startswith("tl.store(tl.make_block_ptr(out")
