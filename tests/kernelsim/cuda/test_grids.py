"""The barrier of a grid (``grid.sync()``): in the simulator, whose blocks then run together, and on a GPU."""

from __future__ import annotations

import pytest
import torch

import kernelsim
import opwright as ow
from opwright.backends.cuda.nvrtc import available
from opwright.errors import LaunchError, SimulatorError
from opwright.results import Refused

needs_nvrtc = pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")

TEXT = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void mean_removed(const float* x, float* part, float* out, int n) {
  cg::grid_group grid = cg::this_grid();
  float sum = 0;
  for (int i = grid.thread_rank(); i < n; i += grid.size()) sum += x[i];
  part[grid.thread_rank()] = sum;
  grid.sync();
  float all = 0;
  for (int i = 0; i < grid.num_threads(); i++) all += part[i];
  for (int i = grid.thread_rank(); i < n; i += grid.size()) out[i] = x[i] - all / n;
}
__global__ void split(float* x, float* y, float scale) {
  cg::grid_group grid = cg::this_grid();
  const int i = grid.thread_rank();
  x[i] = i;
  auto token = grid.barrier_arrive();
  y[i] = scale;
  grid.barrier_wait(static_cast<cg::grid_group::arrival_token&&>(token));
  y[i] += x[(i + blockDim.x) % grid.size()];
}
__global__ void many_rounds(int* x, int rounds) {
  cg::grid_group grid = cg::this_grid();
  const int n = grid.size(), i = grid.thread_rank();
  for (int round = 0; round < rounds; round++) {
    const int before = x[(i + n - blockDim.x) % n];
    cg::sync(grid);
    x[i] = before + 1;
    cg::sync(grid);
  }
}
__global__ void ranks(int* x) { x[cg::this_grid().thread_rank()] = cg::this_grid().block_rank(); }
"""
BLOCKS, THREADS, N = 6, 64, 1000


def removed(text: str, device: str, blocks: int = BLOCKS) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randint(0, 50, (N,), generator=torch.Generator().manual_seed(1)).float().to(device)  # sums are exact
    part, out = torch.zeros(blocks * THREADS, device=device), torch.zeros(N, device=device)
    ow.cuda_module(text)["mean_removed"][blocks, THREADS](x, part, out, N)
    return out, x - x.sum() / N


def rounds(text: str, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(BLOCKS * 32, dtype=torch.int32, device=device)
    wanted = x.roll(5 * 32) + 5
    ow.cuda_module(text)["many_rounds"][BLOCKS, 32](x, 5)
    return x, wanted


def split(text: str, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.zeros(BLOCKS * 32, device=device), torch.zeros(BLOCKS * 32, device=device)
    ow.cuda_module(text)["split"][BLOCKS, 32](x, y, 3.0)
    return y, 3.0 + torch.arange(BLOCKS * 32.0, device=device).roll(-32)


@pytest.mark.compiler
@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("checked", [True, False])
def test_what_was_written_before_the_barrier_is_seen_after_it(seed: int | None, checked: bool) -> None:
    with kernelsim.options(seed=seed, checked=checked, time_limit_s=60):
        for result, wanted in (removed(TEXT, "cpu"), rounds(TEXT, "cpu"), split(TEXT, "cpu")):
            assert torch.allclose(result, wanted)


@pytest.mark.compiler
def test_a_grid_of_one_block_and_the_largest() -> None:
    for blocks in (1, 56):
        result, wanted = removed(TEXT, "cpu", blocks)
        assert torch.allclose(result, wanted)


@pytest.mark.compiler
def test_a_kernel_without_the_barrier_may_have_any_grid() -> None:
    x = torch.zeros(300 * 32, dtype=torch.int32)
    ow.cuda_module(TEXT)["ranks"][300, 32](x)
    assert torch.equal(x, torch.arange(300, dtype=torch.int32).repeat_interleave(32))


@pytest.mark.compiler
def test_a_grid_that_does_not_fit_is_refused() -> None:
    for blocks, threads in ((57, 32), (17, 1024)):
        with pytest.raises(LaunchError, match=f"{blocks} blocks of {threads} threads do not fit"):
            ow.cuda_module(TEXT)["many_rounds"][blocks, threads](torch.zeros(blocks * threads, dtype=torch.int32), 1)


def findings(text: str, name: str = "mean_removed") -> str:
    with pytest.raises(SimulatorError) as raised, kernelsim.options(time_limit_s=60):
        removed(text, "cpu") if name == "mean_removed" else rounds(text, "cpu")
    return str(raised.value)


@pytest.mark.compiler
def test_a_barrier_of_the_block_does_not_order_blocks() -> None:
    found = findings(TEXT.replace("grid.sync();", "__syncthreads();"))
    assert "race: write of 4 bytes" in found
    assert "part[grid.thread_rank()] = sum;" in found


@pytest.mark.compiler
def test_a_barrier_that_is_missing_between_rounds_is_a_race() -> None:
    found = findings(TEXT.replace("    cg::sync(grid);\n    x[i]", "    x[i]"), "many_rounds")
    assert "no barrier of the grid is between them" in found


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("statement", "late"),
    [
        ("if (threadIdx.x == 3 && blockIdx.x == 2) return; grid.sync();", "1 thread of a block ended"),
        ("if (blockIdx.x != 2) grid.sync();", "64 threads of a block ended"),
    ],
)
def test_a_thread_that_never_comes_is_reported_at_the_barrier(statement: str, late: str) -> None:
    found = findings(TEXT.replace("grid.sync();", statement))
    assert f"barrier: {late} without this barrier of the grid" in found
    assert statement in found


@pytest.mark.compiler
def test_a_grid_with_clusters_is_refused() -> None:
    text = TEXT.replace("__global__ void many_rounds", "__global__ void __cluster_dims__(2) many_rounds")
    with pytest.raises(LaunchError, match="has clusters; the simulator has one or the other"):
        rounds(text, "cpu")


@needs_nvrtc
def test_nvrtc_takes_them_and_tells_which_wait_for_the_grid() -> None:
    entries = ow.cuda_module(TEXT).compile("sm_90").entries
    assert {e.name: e.cooperative for e in entries} == {
        "mean_removed": True, "split": True, "many_rounds": True, "ranks": False,
    }  # fmt: skip


@pytest.mark.gpu
@pytest.mark.nvrtc
def test_a_gpu_gives_the_same() -> None:
    for _ in range(3):  # the first launch, and those after it, take different paths
        for result, wanted in (removed(TEXT, "cuda"), rounds(TEXT, "cuda"), split(TEXT, "cuda")):
            assert torch.allclose(result, wanted)


@pytest.mark.gpu
@pytest.mark.nvrtc
def test_a_gpu_refuses_a_grid_that_does_not_fit() -> None:
    x = torch.zeros(10**5 * 1024, dtype=torch.int32, device="cuda")
    with pytest.raises(LaunchError, match="100000 blocks of 1024 threads do not fit"):
        ow.cuda_module(TEXT)["many_rounds"][10**5, 1024](x, 1)
    ow.cuda_module(TEXT)["ranks"][10**5, 1024](x)
    assert int(x[-1]) == 10**5 - 1
