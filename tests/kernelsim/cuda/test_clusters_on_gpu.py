"""Clusters on a GPU of compute capability 9.0: the simulator's own tests, on the hardware, and refused launches."""

from __future__ import annotations

import pytest
import torch

import opwright as ow
from opwright.errors import LaunchError
from tests.kernelsim.cuda.clusters import ASYNC, GROUPS, LAUNCHES, all_reductions

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.nvrtc,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="it has no clusters"
    ),
]


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_kernel_gives_what_it_gives_in_the_simulator(name: str) -> None:
    text, launch = LAUNCHES[name]
    for _ in range(3):  # the first launch, and those after it, take different paths
        result, wanted = launch(text, "cuda")
        assert torch.equal(result.cpu(), wanted.cpu())


def test_each_reduction_into_global_memory() -> None:
    result, wanted = all_reductions("cuda")
    assert torch.equal(result.cpu(), wanted.cpu())


def test_a_launch_with_other_clusters_than_the_kernels_own_is_refused() -> None:
    x = torch.zeros(64, device="cuda")
    with pytest.raises(LaunchError, match=r"clusters of \(4, 1, 1\) blocks, and its __cluster_dims__ are \(2, 1, 1\)"):
        ow.cuda_module(ASYNC)["handshake"][4, 32, 0, 4](x, x, 1)
    with pytest.raises(LaunchError, match=r"must be a whole number of clusters of \(2, 1, 1\) blocks, got \(3, 1, 1\)"):
        ow.cuda_module(ASYNC)["handshake"][3, 32](x, x, 1)


def test_the_kernels_own_clusters_may_be_named_at_the_launch() -> None:
    x = torch.arange(64.0, device="cuda").view(2, 32)
    y = torch.zeros_like(x)
    ow.cuda_module(ASYNC)["handshake"][2, 32, 0, 2](x, y, 2)
    assert torch.equal(y, x.flip(1))


def test_clusters_of_sixteen_blocks() -> None:
    x = torch.arange(32 * 32.0, device="cuda")
    y = torch.zeros_like(x)
    ow.cuda_module(GROUPS)["ring"][32, 32, 0, 16](x, y, 5)
    assert torch.equal(y, x.view(2, 16, 32).roll(5, 1).flatten() + 5)
    handed = torch.arange(16 * 64.0, device="cuda")
    ow.cuda_module(GROUPS)["through_global_memory<16>"][16, 64](handed)
    assert torch.equal(handed.cpu(), torch.arange(16 * 64.0).view(16, 64).roll(-3, 0).flatten() + 3)


def test_launches_are_captured_in_a_graph() -> None:
    x = torch.arange(256.0, device="cuda")
    y = torch.zeros_like(x)
    kernel = ow.cuda_module(GROUPS)["reversed"]
    kernel[4, 64, 0, 2](x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel[4, 64, 0, 2](x, y)
    y.zero_()
    graph.replay()
    assert torch.equal(y, x.view(2, 2, 64).flip(1, 2).flatten())
