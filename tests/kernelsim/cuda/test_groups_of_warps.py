"""Barriers of some warps, elect.sync, and what concerns clusters, in the simulator."""

from __future__ import annotations

import pytest
import torch

import kernelsim
import opwright as ow
from opwright.backends.cuda.nvrtc import available
from opwright.results import Refused

pytestmark = pytest.mark.compiler
needs_nvrtc = pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")

# Two warps reverse values together, twice; a third one only takes part in the second exchange, without waiting.
NAMED = """
__global__ void k(float* x, int* elected) {
  __shared__ float values[64];
  const int i = threadIdx.x;
  if (i >= 64) {
    asm volatile("bar.arrive %0, 96;" ::"r"(3) : "memory");
    return;
  }
  values[i] = x[i];
  asm volatile("bar.sync 1, 64;" ::: "memory");
  x[i] = values[63 - i];
  asm volatile("barrier.sync 3, 96;" ::: "memory");
  values[i] = 2 * x[i];
  asm volatile("bar.sync 1, 64;" ::: "memory");
  x[i] = values[63 - i];
  unsigned is_leader, leader;
  asm volatile("{ .reg .pred p; elect.sync %1|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(is_leader), "=r"(leader));
  if (is_leader) atomicAdd(elected, 1);
}
"""


def run(text: str, threads: int = 96) -> tuple[torch.Tensor, int]:
    x, elected = torch.arange(64.0), torch.zeros(1, dtype=torch.int32)
    kernelsim.cuda(text)["k"][1, threads](x, elected)
    return x, int(elected)


def test_warps_meet_at_a_barrier_of_their_own_and_elect_a_lane() -> None:
    x, elected = run(NAMED)
    assert torch.equal(x, 2 * torch.arange(64.0))
    assert elected == 2


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('  asm volatile("bar.sync 1, 64;" ::: "memory");\n  x[i] = values[63 - i];\n  asm',
         "  x[i] = values[63 - i];\n  asm", "race: |uninitialised: "),
        ('"bar.sync 1, 64;" ::: "memory");\n  x[i] = values[63 - i];\n  unsigned',
         '"bar.sync 2, 96;" ::: "memory");\n  x[i] = values[63 - i];\n  unsigned',
         "barrier 2 is waited for without end: 32 of 96 threads are missing"),
        ('"bar.arrive %0, 96;" ::"r"(3)', '"bar.arrive %0, 64;" ::"r"(3)', "meets .* threads at a barrier of"),
        ('"bar.arrive %0, 96;" ::"r"(3)', '"bar.arrive %0, 96;" ::"r"(4)',
         "barrier 3 is waited for without end: 32 of 96 threads are missing"),
    ],
)  # fmt: skip
def test_a_wrong_barrier_is_named(before: str, after: str, message: str) -> None:
    assert before in NAMED
    with pytest.raises(kernelsim.FindingError, match=message):
        run(NAMED.replace(before, after))


# What a kernel for clusters does with a cluster of one block.
CLUSTER = """
__global__ void __cluster_dims__(1, 1, 1) k(float* x, int* elected) {
  __shared__ float values[64];
  const int i = threadIdx.x;
  asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  values[i] = x[i];
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  unsigned own = (unsigned)__cvta_generic_to_shared(&values[63 - i]), there, rank;
  asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x[i]) : "r"(there));
  asm volatile("griddepcontrol.launch_dependents;");
}
"""


def test_a_cluster_of_one_block() -> None:
    assert torch.equal(run(CLUSTER, 64)[0], torch.arange(63.0, -1, -1))


def test_without_the_clusters_barrier_it_is_a_race() -> None:
    with pytest.raises(kernelsim.FindingError, match=r"race: |uninitialised: "):
        run(CLUSTER.replace("barrier.cluster.arrive.release.aligned;", "").replace(
            "barrier.cluster.wait.acquire.aligned;", ""), 64)  # fmt: skip


def test_another_block_of_the_cluster_is_a_finding() -> None:
    with pytest.raises(
        kernelsim.FindingError,
        match="cluster: the shared memory of block 1 of the cluster, which has 1: the",
    ):
        run(CLUSTER.replace('"r"(rank)', '"r"(rank + 1)'), 64)


@needs_nvrtc
@pytest.mark.parametrize("text", [NAMED, CLUSTER], ids=["named", "cluster"])
def test_nvrtc_takes_it(text: str) -> None:
    assert ow.cuda_module(text).compile("sm_90a").entries
