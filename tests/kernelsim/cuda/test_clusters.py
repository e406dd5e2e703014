"""Clusters of blocks in the simulator: right kernels are left alone, wrong ones are named with their line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
import torch

import kernelsim
import opwright as ow
from kernelsim.findings import CudaFinding
from opwright.backends.cuda.nvrtc import available
from opwright.errors import LaunchError, SimulatorError
from opwright.results import Refused
from tests.kernelsim.cuda.clusters import (
    ASYNC,
    GROUPS,
    LAUNCHES,
    LIBCU,
    MATMUL,
    all_reductions,
    reductions_text,
)
from tests.sampled import quick, sampled

pytestmark = pytest.mark.compiler
needs_nvrtc = pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")


@pytest.mark.parametrize("name", quick(LAUNCHES, every=3))
@pytest.mark.parametrize("seed", [None, 1])
def test_a_right_kernel_is_left_alone(name: str, seed: int | None) -> None:
    text, launch = LAUNCHES[name]
    with kernelsim.options(seed=seed, time_limit_s=60):
        result, wanted = launch(text, "cpu")
    assert torch.equal(result, wanted)


def slow_but(sample: int, names: Iterable[str]) -> list[Any]:
    """g++ compiles a kernel for each name: the first ones run by default, a third of the others with the slow tests."""
    given = list(names)
    return [*given[:sample], *quick(sampled(given[sample:], 3))] if given[sample:] else given


@pytest.mark.parametrize("name", slow_but(3, LAUNCHES))
def test_the_fast_build_gives_the_same(name: str) -> None:
    text, launch = LAUNCHES[name]
    with kernelsim.options(checked=False, time_limit_s=60):
        result, wanted = launch(text, "cpu")
    assert torch.equal(result, wanted)


@needs_nvrtc
@pytest.mark.parametrize(
    "text", [GROUPS, ASYNC, MATMUL, LIBCU, reductions_text()], ids=["groups", "async", "matmul", "libcu", "all"]
)
@pytest.mark.slow  # NVRTC with libcu++
def test_nvrtc_takes_them(text: str) -> None:
    assert ow.cuda_module(text).compile("sm_90a").entries


@pytest.mark.parametrize("checked", [True, False])
def test_each_reduction_into_global_memory(checked: bool) -> None:
    with kernelsim.options(checked=checked):
        result, wanted = all_reductions("cpu")
    assert torch.equal(result, wanted)


def test_a_reduction_that_the_elements_do_not_have_is_a_finding() -> None:
    maps = [ow.tensor_map(torch.zeros(10, 36), (8, 32)) for _ in range(2)]
    with pytest.raises(SimulatorError, match="trap: a reduction that the hardware does not have for the elements"):
        ow.cuda_module(ASYNC)["added"][1, 64](*maps)


@pytest.mark.parametrize("suffix", ["add.s64", "min.f32", "inc.s32", "and.u32", "add.f16"])
def test_reductions_that_ptx_does_not_have_are_refused(suffix: str) -> None:
    text = ASYNC.replace("bulk_group.add.f32", f"bulk_group.{suffix}")
    with pytest.raises(
        ow.errors.KernelRefusedError, match=r"inline PTX cp\.reduce\.async\.bulk\.global\.shared::cta.*: (PTX|sums)"
    ):
        ow.cuda_module(text)["reductions"][4, 64, 0, 4](*(torch.zeros(256, dtype=torch.int32) for _ in range(3)))


# --- what is wrong ---

SYNC = "  cluster.sync();\n"
READ = "y[at] = other[63 - i];"
STARTED = "which may not have started: no barrier of the cluster comes before the access"
ENDED = "which may have ended: no barrier of the cluster comes after the access"
NOT_BETWEEN = "no barrier of the cluster is between them"
PART = "if (threadIdx.x == 0) cluster.map_shared_rank(parts, 0)[rank] = sum;"
ADD = "atomicAdd(part + values[i] % bins_per_block, 1);"
SPLIT_READ = "y[at] = own + *cluster.map_shared_rank(&tile[i], (cluster.block_rank() + 1) % cluster.num_blocks());"
STORE = (
    'asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(in_block(&tile[i], 1)), "f"(x[row * 32 + i]) : "memory");'
)
ROW = "y[row * 32 + i] = tile[31 - i];"
FINAL = "  sync_cluster();\n}\n\n// Each thread stores"
ASM = "asm volatile("  # the first line of a statement of several
ENDLESS = "is waited for without end: in its phase"
# By what is wrong: the kernel, what is changed in it, and a finding: its kind, a line that it names (its own, that of a
# call that leads to it, or that of the other thread), and a part of its message.
WRONG = {
    "no barrier before another block's memory is read": (
        "reversed", f"{SYNC}  const float* other", "  const float* other", "cluster", READ, STARTED),
    "a barrier of the block before another one's memory is read": (
        "reversed", f"{SYNC}  const float* other", "  __syncthreads();\n  const float* other", "cluster",
        READ, STARTED),
    "no barrier after another block's memory was read": (
        "reversed", f"{READ}\n{SYNC}", f"{READ}\n", "cluster", READ, f"of block .*{ENDED}"),
    "past the end of another block's array": (
        "reversed", "other[63 - i]", "other[127 - i]", "out-of-bounds", READ.replace("63", "127"),
        r"past the end of shared variable 'tile' \(256 bytes\) of block \(\d, 0, 0\)"),
    "a block that the cluster does not have": (
        "reversed", "cluster.block_rank() ^ 1", "cluster.block_rank() + 1", "cluster",
        "const float* other = cluster.map_shared_rank(tile, cluster.block_rank() + 1);",
        "the shared memory of block 2 of the cluster, which has 2"),
    "what the other block has not written": (
        "reversed", "tile[i] = x[at];", "if (i < 32) tile[i] = x[at];", "uninitialised", READ,
        r"of shared variable 'tile' \(256 bytes\) of block \(\d, 0, 0\), which was never written"),
    "an arrival that releases nothing": (
        "reversed", f"{SYNC}  const float* other",
        "  __cluster_barrier_arrive_relaxed();\n  __cluster_barrier_wait();\n  const float* other", "race", READ,
        f"of block .* races with a write; {NOT_BETWEEN}"),
    "a write without a barrier before it": (
        "row_sums", f"{SYNC}  {PART}", f"  {PART}", "cluster", PART, f"writes 4 bytes at .* of block .*, {STARTED}"),
    "no barrier after another block wrote": (
        "row_sums", f"{PART}\n{SYNC}", f"{PART}\n", "uninitialised",
        "for (unsigned i = 0; i < blocks; i++) all += parts[i];",
        "which was never written"),
    "a barrier that one block skips": (
        "row_sums", f"{PART}\n{SYNC}", f"{PART}\n  if (rank) cluster.sync();\n", "barrier", "if (rank) cluster.sync();",
        "32 threads of a block reached the end of the kernel without this barrier of the cluster"),
    "a barrier that one thread of each block reaches": (
        "reversed", f"{READ}\n{SYNC}", f"{READ}\n  if (i == 0) cluster.sync();\n", "barrier",
        "if (i == 0) cluster.sync();",
        "63 threads of a block reached the end of the kernel without this barrier of the cluster"),
    "two barriers in two branches": (
        "reversed", f"{READ}\n{SYNC}", f"{READ}\n  if (i != 0) __syncthreads();\n  else cluster.sync();\n", "barrier",
        "else cluster.sync();", "the cluster's barrier is waited for without end: 126 of 128 threads are missing"),
    "additions that are not atomic": (
        "histogram", ADD, "part[values[i] % bins_per_block] += 1;", "race", "part[values[i] % bins_per_block] += 1;",
        "races with a"),
    "a bin that no block has": (
        "histogram", "values[i] / bins_per_block", "values[i] / bins_per_block + 1", "cluster",
        "int* part = cluster.map_shared_rank(own, values[i] / bins_per_block + 1);",
        "block 3 of the cluster, which has 3"),
    "bins that are read while others add": (
        "histogram", f"  }}\n{SYNC}", "  }\n", "race", ADD, "of dynamic shared memory .* races with a"),
    "bins that are cleared too late": (
        "histogram", f"own[i] = 0;\n{SYNC}", "own[i] = 0;\n  cluster.barrier_arrive();\n", "barrier", "cluster.sync();",
        "arrives at the cluster's barrier again, without having waited for its last arrival"),
    "one buffer for values that come and go": (
        "ring", "buffers[(step + 1) % 2], (rank", "buffers[step % 2], (rank", "race",
        "next[threadIdx.x] = buffers[step % 2][threadIdx.x] + 1;", NOT_BETWEEN),
    "no barrier between two steps": (
        "ring", "    cluster.sync();\n", "", "race", "next[threadIdx.x] = buffers[step % 2][threadIdx.x] + 1;", ".*"),
    "no wait after an arrival": (
        "split", "  cluster.barrier_wait(static_cast<cg::cluster_group::arrival_token&&>(token));\n", "", "barrier",
        "cluster.barrier_arrive();", "arrives at the cluster's barrier again, without having waited"),
    "a wait without an arrival": (
        "split", "auto token = cluster.barrier_arrive();", "cg::cluster_group::arrival_token token;", "barrier",
        "cluster.barrier_wait(static_cast<cg::cluster_group::arrival_token&&>(token));",
        "waits for the cluster's barrier without having arrived at it"),
    "what was written after the arrival": (
        "split", "map_shared_rank(&tile[i]", "map_shared_rank(&more[i]", "race",
        SPLIT_READ.replace("&tile", "&more"), NOT_BETWEEN),
    "global memory without a barrier before it is written": (
        "through_global_memory", "    cg::this_cluster().sync();\n    x[", "    x[", "race",
        "x[blockIdx.x * 64 + i] = value + 1;", NOT_BETWEEN),
    "global memory with a barrier of the block": (
        "through_global_memory", "+ 1;\n    cg::this_cluster().sync();", "+ 1;\n    __syncthreads();", "race",
        ".*", NOT_BETWEEN),
    "a stage that is filled before it was read": (
        "handshake", "      if (row) wait(&empty, (row - 1) & 1);\n", "", "race", STORE, NOT_BETWEEN),
    "a stage that is read before it was filled": (
        "handshake", "      wait(&full, row & 1);\n", "", "uninitialised", ROW, "never written"),
    "an arrival at another block's mbarrier that releases nothing": (
        "handshake", "arrive.release.cluster.shared::cluster", "arrive.relaxed.cluster.shared::cluster", "race", ROW,
        NOT_BETWEEN),
    "an arrival that never comes": (
        "handshake", "      arrive_in(&full, 1);\n", "", "barrier", "wait(&full, row & 1);",
        f"{ENDLESS} 0, 32 of 32 arrivals and 0 bytes are missing"),
    "mbarriers that other blocks do not know": (
        "handshake", '  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");\n', "", "race",
        "arrive_in(&full, 1);", f"of block .* races with a write; {NOT_BETWEEN}"),
    "an mbarrier of a block that may not have started": (
        "handshake", "  publish_barriers();\n  for (int row", "  __syncthreads();\n  for (int row", "cluster",
        STORE, STARTED),
    "an mbarrier of a block that may have ended": (
        "handshake", FINAL, FINAL.replace("  sync_cluster();\n", ""), "cluster", "arrive_in(&empty, 0);",
        f"shared variable 'empty' .* of block .*{ENDED}"),
    "a wait for another block's mbarrier": (
        "handshake", "wait(&full, row & 1);", "wait((uint64_t*)__cvta_shared_to_generic(in_block(&full, 0)), row & 1);",
        "barrier", "wait((uint64_t*)__cvta_shared_to_generic(in_block(&full, 0)), row & 1);",
        r"of block \(0, 0, 0\) is waited for by a thread of another block: only its own block can"),
    "stores of which too few bytes are expected": (
        "stores", "expect(&full, sizeof(tile));", "expect(&full, sizeof(tile) / 2);", "barrier", "wait(&full, 0);",
        f"{ENDLESS} 0, 0 of 1 arrivals and -256 bytes are missing"),
    "stores that complete in another block": (
        "stores", '"r"(in_block(&full, next))', '"r"(in_block(&full, rank()))', "barrier", ".*st.async.*",
        "is not in the shared memory of the block that the copy goes to"),
    "stores that are not waited for": (
        "stores", "  wait(&full, 0);\n", "", "uninitialised", "y[blockIdx.x * 32 + i] = tile[31 - i];",
        "never written|asynchronous copy fills"),
    "stores to a misaligned address": (
        "stores", "in_block(&tile[i], next)),", "in_block(&tile[i], next) + 4),", "misaligned", ".*st.async.*",
        "an asynchronous store .* not a multiple of 16"),
    "a copy of what the copying unit cannot see": (
        "sends", '  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n', "", "race", ".*cp.async.bulk.*",
        "there is no fence.proxy.async between them"),
    "what is being copied is overwritten": (
        "sends", "  wait(&full, 0);\n", "  from[i] = 0;\n  wait(&full, 0);\n", "race", "from[i] = 0;", "races with a"),
    "a copy of a size that is no multiple": (
        "sends", '"r"((uint32_t)sizeof(from))', '"r"((uint32_t)sizeof(from) - 4)', "misaligned", ".*cp.async.bulk.*",
        "size is 252 bytes"),
    "a copy to more blocks than there are": (
        "multicast", "(1 << blocks) - 1", "(2 << blocks) - 1", "cluster", ASM,
        "the shared memory of block 4 of the cluster, which has 4"),
    "a copy to blocks that may not have started": (
        "multicast", "  publish_barriers();\n  if", "  __syncthreads();\n  if", "cluster", ASM, STARTED),
    "a reduction of what has no value": (
        "reductions", "  sums[i] = 0;\n", "", "uninitialised", ASM, "atomically updates 256 bytes"),
    "sums that are read while they change": (
        "reductions", "    wait(&full, 0);\n", "", "race", "y[i] = sums[i];", "races with a"),
    "a stage that is given back to its own block only": (
        "matmul", "give_back(&empty[s], threadIdx.x % 128)", "give_back(&empty[s], block)", "race",
        "load_both(&b_map, tiles + s * 2 * bytes + bytes + block * bytes / 2, step * 64, block * 64, &full[s]);",
        "races with a"),
    "blocks that end while others give stages back to them": (
        "matmul", '  asm volatile("barrier.cluster.wait;" ::: "memory");\n', "", "cluster",
        "if (threadIdx.x % 128 < 2) give_back(&empty[s], threadIdx.x % 128);",
        f"atomically updates 8 bytes at .* of shared variable 'empty' .* of block .*{ENDED}"),
    "a copy by libcu++'s name of what the copying unit cannot see": (
        "passed", "  ptx::fence_proxy_async(ptx::space_shared);\n", "", "race",
        "ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_add, sums, own, sizeof(own));",
        "there is no fence.proxy.async between them"),
    "a flag that releases nothing": (
        "flag", "st.release.cluster.shared::cluster.s32", "st.relaxed.cluster.shared::cluster.s32", "race",
        "y[threadIdx.x] = data[31 - threadIdx.x];", NOT_BETWEEN),
    "a flag that is read by a plain load": (
        "flag", "ld.acquire.cluster.shared::cta.s32", "ld.volatile.shared::cta.s32", "race", ".*", NOT_BETWEEN),
    "a count that is read while it changes": (
        "atomics", '"r"(mine) : "memory");\n  sync_cluster();', '"r"(mine) : "memory");', "race", ".*count.*",
        "races with an? "),
}  # fmt: skip


def findings(name: str, before: str, after: str) -> list[CudaFinding]:
    text, launch = LAUNCHES[name]
    begin = text.index(f" {name}(")
    assert before in text[begin:] or before in text[: text.index("__global__")]
    if before in text[begin:]:
        text = text[:begin] + text[begin:].replace(before, after, 1)
    else:
        text = text.replace(before, after)
    with kernelsim.options(time_limit_s=60), pytest.raises(SimulatorError) as caught:
        launch(text, "cpu")
    return [one for one in caught.value.findings if isinstance(one, CudaFinding)]


def named(finding: CudaFinding) -> list[str]:
    """The lines that it names."""
    others = [finding.other.source_line] if finding.other is not None else []
    return [finding.source_line, *(caller.source_line for caller in finding.callers), *others]


@pytest.mark.parametrize("name", quick(slow_but(12, WRONG), 0, 4, 6, 8))
def test_a_wrong_kernel_is_named_with_its_line(name: str) -> None:
    kernel, before, after, kind, line, message = WRONG[name]
    found = findings(kernel, before, after)
    lines = [text for one in found if one.kind == kind and re.search(message, one.message) for text in named(one)]
    assert any(line == text or (".*" in line and re.search(line, text)) for text in lines), "\n".join(map(str, found))


def test_a_launch_without_the_cluster_is_named() -> None:
    x = torch.zeros(256)
    with pytest.raises(SimulatorError, match="which has 1: the kernel was launched without a cluster"):
        ow.cuda_module(GROUPS)["reversed"][4, 64](x, x)


def test_a_launch_with_other_clusters_than_the_kernels_own_is_refused() -> None:
    x, kernel = torch.zeros(64), ow.cuda_module(ASYNC)["handshake"]
    with pytest.raises(LaunchError, match=r"clusters of \(4, 1, 1\) blocks, and its __cluster_dims__ are \(2, 1, 1\)"):
        kernel[4, 32, 0, 4](x, x, 1)
    with pytest.raises(LaunchError, match=r"must be a whole number of clusters of \(2, 1, 1\) blocks, got \(3, 1, 1\)"):
        kernel[3, 32](x, x, 1)
    kernel[2, 32, 0, 2](x, x.clone(), 1)


def test_clusters_of_sixteen_blocks() -> None:
    x = torch.arange(32 * 32.0)
    y = torch.zeros_like(x)
    ow.cuda_module(GROUPS)["ring"][32, 32, 0, 16](x, y, 5)
    assert torch.equal(y, x.view(2, 16, 32).roll(5, 1).flatten() + 5)


def test_a_block_that_stops_ends_its_cluster_only() -> None:
    x = torch.zeros(128)
    text = GROUPS.replace("tile[i] = x[at];", "tile[i] = x[blockIdx.x == 2 ? at + 64 : at];", 1)
    with pytest.raises(SimulatorError) as caught:
        ow.cuda_module(text)["reversed"][6, 64, 0, 2](x, torch.ones(384))
    kinds = {(one.kind, one.block) for one in caught.value.findings if isinstance(one, CudaFinding)}
    assert kinds == {("out-of-bounds", (2, 0, 0))}
