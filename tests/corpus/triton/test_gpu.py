"""What a GPU gets of a launch that the simulator makes, with a CPU in its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
import torch

pytest.importorskip("triton.tools.tensor_descriptor")

import triton
import triton.language as tl
from triton.runtime import _allocation
from triton.tools.tensor_descriptor import TensorDescriptor

import kernelsim
from kernelsim.own_host import own_host
from kernelsim.triton_sim.simulate import Simulation
from tests.corpus.triton import gpu
from tests.corpus.triton.comparison import Case
from tests.corpus.triton.table import row

pytestmark = [pytest.mark.triton, pytest.mark.compiler]


def set_tile_and_clear(arguments: dict[str, Any]) -> None:
    arguments["x"].block_shape = [arguments["B"]] * 2
    arguments["total"].zero_()


@triton.autotune([triton.Config({"B": b}, num_warps=8, pre_hook=set_tile_and_clear) for b in (16, 32)], key=["passes"])
@triton.jit
def sums_of_rows(x, total, outs, passes, B: tl.constexpr):
    i = tl.arange(0, B)
    rows = tl.sum(x.load([0, 0]).to(tl.float32), 1) * passes
    tl.store(total + i, tl.load(total + i) + rows)
    tl.store(outs[0] + i, rows)


@triton.jit
def increment(x, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(x + i, tl.load(x + i) + 1)


class OnTheCpu:
    """Makes the launches of the "GPU", and keeps what it gets."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Sequence[Any], dict[str, Any]]] = []
        self.error: Exception | None = None
        self._simulated = Simulation.launch

    def __call__(self, function: Any, grid: Any, args: Sequence[Any], keywords: dict[str, Any]) -> None:
        self.made.append((function.__name__, args, keywords))
        if self.error is not None:
            raise self.error
        simulation = Simulation(checked=True, seed=None, given=None, host=own_host())
        self._simulated(simulation, function, grid, args, keywords)


@pytest.fixture
def there() -> Iterator[OnTheCpu]:
    made = OnTheCpu()
    with mock.patch.object(gpu, "_launch_with_triton", made):
        yield made


def test_both_get_the_choice_of_an_autotuner_and_what_its_hook_has_left(there: OnTheCpu) -> None:
    x, total, outs = torch.randn(16, 32), torch.full((16,), 5.0), (torch.empty(16),)
    with gpu.on_a_gpu_as_well("cpu") as launches, kernelsim.triton_launches():
        sums_of_rows[(1,)](TensorDescriptor.from_tensor(x, [1, 1]), total, outs, 3)
    torch.testing.assert_close(total, 3 * x[:, :16].sum(1))
    assert (launches.count, launches.same, launches.failed) == (1, 1, {})
    ((_, (desc, its_total, (its_out,), passes), chosen),) = there.made
    assert (chosen["B"], chosen["num_warps"], passes) == (16, 8, 3)
    assert desc.block_shape == [16, 16]
    for ours, theirs in ((x, desc.base), (total, its_total), (outs[0], its_out)):
        assert torch.equal(ours, theirs)
        assert ours.data_ptr() != theirs.data_ptr()


def test_what_shares_memory_does_so_there() -> None:
    whole = torch.arange(64.0)
    mirror = gpu._Mirror("cpu")
    part, transposed = mirror(whole[32:]), mirror(whole.view(8, 8).T)
    described = mirror(TensorDescriptor.from_tensor(whole.view(8, 8), [4, 4])).base
    part[0] = -1
    assert transposed[0, 4] == described[4, 0] == -1
    assert transposed.stride() == (1, 8)
    assert whole[32] == 32


def test_the_mirror_is_on_the_device() -> None:
    described = TensorDescriptor.from_tensor(torch.zeros(8, 8), [4, 4])
    assert gpu._Mirror("meta")(described).base.device.type == "meta"
    assert described.base.device.type == "cpu"


def test_a_kernel_may_ask_for_memory_of_its_own() -> None:
    """As it does where it makes descriptors, whatever the library's allocator is."""
    asked_for: list[torch.Tensor] = []

    def asked(*_: Any) -> None:
        asked_for.append(_allocation._allocator.get()(100, 128, None))

    with mock.patch.object(gpu, "_launch_with_triton", asked), gpu.on_a_gpu_as_well("cpu"), kernelsim.triton_launches():
        increment[(1,)](torch.zeros(16), B=16)
    (memory,) = asked_for
    assert (memory.numel(), memory.element_size()) == (100, 1)


def test_what_the_gpu_raises_is_kept_and_the_case_goes_on(there: OnTheCpu) -> None:
    there.error = RuntimeError("out of resources\nmore")
    x = torch.zeros(16)
    with gpu.on_a_gpu_as_well("cpu") as launches, kernelsim.triton_launches():
        increment[(1,)](x, B=16)
        there.error = None
        increment[(1,)](x, B=16)
    assert (x == 2).all()
    assert launches.failed == {"increment": "RuntimeError: out of resources"}
    assert (launches.count, launches.same) == (1, 1)


def test_a_gpu_whose_context_is_broken_is_not_asked_again(there: OnTheCpu) -> None:
    x = torch.zeros(16)
    broken = mock.patch.object(gpu._Gpu, "_wait", side_effect=RuntimeError("an illegal memory access"))
    with broken, gpu.on_a_gpu_as_well("cpu") as launches, kernelsim.triton_launches():
        increment[(1,)](x, B=16)
        increment[(1,)](x, B=16)
    assert (x == 2).all()
    assert len(there.made) == 1
    assert launches.failed == {"increment": "RuntimeError: an illegal memory access"}


def test_what_the_simulator_finds_at_fault_is_not_for_a_gpu(there: OnTheCpu) -> None:
    found = pytest.raises(kernelsim.FindingError, match="out-of-bounds")
    with gpu.on_a_gpu_as_well("cpu"), kernelsim.triton_launches(), found:
        increment[(1,)](torch.zeros(15), B=16)
    assert not there.made


def test_differences_are_relative_and_nan_in_both_is_none() -> None:
    launches = gpu.Launches()
    launches.add("kernel", [torch.tensor([8.0, 1.0, torch.nan])], [torch.tensor([8.0, 3.0, torch.nan])])
    launches.add("kernel", [torch.empty(0), torch.ones(2)], [torch.empty(0), torch.ones(2)])
    assert (launches.count, launches.same, launches.largest) == (2, 1, {"kernel": 0.25})


def test_a_case_says_what_it_needs() -> None:
    case = Case("library.kernel", lambda: 0.0, 1e-4, needs="Blackwell")
    assert [case.why_not_on(capability) for capability in ((9, 0), (10, 0))] == ["needs Blackwell", ""]
    record = {"outcome": "same", "difference": 0.0, "gpu": {"left_out": case.why_not_on((9, 0))}}
    assert row(case.name, record).endswith("not on the GPU: needs Blackwell")
