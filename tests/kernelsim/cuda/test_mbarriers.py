"""mbarriers, cuda::barrier and bulk copies in the simulator: right kernels are left alone, wrong ones named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import kernelsim
import opwright as ow
from kernelsim.findings import CudaFinding
from opwright.backends.cuda.nvrtc import available
from opwright.results import Refused
from tests.sampled import quick

pytestmark = pytest.mark.compiler
needs_nvrtc = pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")

PIPELINE = (Path(__file__).parent / "kernels" / "mbarriers.cu").read_text()


def row_sums(text: str, rows: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    x, sums = torch.randint(-9, 9, (rows, 64)).float(), torch.zeros(rows)
    kernelsim.cuda(text)["row_sums"][1, 96](x, sums, rows)
    return sums, x.sum(1)


def finding(text: str, kind: str, message: str) -> CudaFinding:
    """The first finding of a kind with a message, of several that one mistake may lead to."""
    with pytest.raises(kernelsim.FindingError) as caught:
        row_sums(text)
    findings = [one for one in caught.value.findings if isinstance(one, CudaFinding)]
    found = [one for one in findings if one.kind == kind and re.search(message, one.message)]
    assert found, caught.value
    return found[0]


def changed(before: str, after: str) -> str:
    assert before in PIPELINE
    return PIPELINE.replace(before, after)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_pipeline_of_bulk_copies_is_left_alone(seed: int | None) -> None:
    with kernelsim.options(seed=seed):
        sums, wanted = row_sums(PIPELINE)
    assert torch.equal(sums, wanted)


def test_the_fast_build_gives_the_same() -> None:
    with kernelsim.options(checked=False):
        sums, wanted = row_sums(PIPELINE)
    assert torch.equal(sums, wanted)


WAIT_FULL, WAIT_EMPTY = "wait(&full[s], row / stages & 1)", "wait(&empty[s], (row / stages & 1) ^ 1)"
WAIT_ONCE = (
    r'asm volatile("{ .reg .pred P1; mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1; }"'
    ' ::"r"(shared_address(&full[s])), "r"(row / stages & 1) : "memory")'
)
EXPECT = "expect(&full[s], columns * sizeof(float));"
LOAD = "load(tile[s], x + row * columns, columns * sizeof(float), &full[s]);"
BEYOND = LOAD.replace("columns * s", "3 * columns * s").replace(", &", " + 16, &")
READ = "float value = tile[s][threadIdx.x];"
ENDLESS = "is waited for without end: in its phase"
# What is changed; the kind of the finding, the line that it names (its own or its caller's), a part of its message.
WRONG = {
    "a consumer does not wait": (WAIT_FULL, "", "uninitialised", READ, "never written"),
    "a consumer tries to wait once": (WAIT_FULL, WAIT_ONCE, "uninitialised", READ, "an asynchronous copy fills"),
    "a consumer waits for the other phase": (WAIT_FULL, "wait(&full[s], (row / stages & 1) ^ 1)", "uninitialised", READ,
                                             "never written"),
    "the producer waits for the other phase": (WAIT_EMPTY, "wait(&empty[s], row / stages & 1)", "barrier",
                                               "wait(&empty[s], row / stages & 1);",
                                               f"{ENDLESS} 0, 64 of 64 arrivals and 0 bytes are missing"),
    "the stage is not given back": ("    arrive(&empty[s]);", "", "barrier", WAIT_EMPTY + ";",
                                    f"{ENDLESS} 0, 64 of 64"),
    "the stage is given back too early": (f"{READ}\n    arrive(&empty[s]);", f"arrive(&empty[s]);\n    {READ}", "race",
                                          LOAD, "races with a read"),
    "one consumer too few is waited for": ("init(&empty[s], consumers)", "init(&empty[s], consumers - 1)", "race", LOAD,
                                           "races with a read"),
    "an arrival that releases nothing": ("arrive.release.cta", "arrive.relaxed.cta", "race", LOAD, "races with a read"),
    "the producer does not wait": (WAIT_EMPTY, "", "barrier", EXPECT, "more arrivals in a phase than its count"),
    "no bytes are expected": (EXPECT, "arrive(&full[s]);", "uninitialised", READ, "which an asynchronous copy fills"),
    "nothing arrives": (EXPECT, "", "barrier", WAIT_FULL + ";", f"{ENDLESS} 0, 1 of 1 arrivals"),
    "too many bytes are expected": (EXPECT, EXPECT.replace("columns", "2 * columns"), "barrier", WAIT_FULL + ";",
                                    f"{ENDLESS} 0, 0 of 1 arrivals and 256 bytes are missing"),
    "a misaligned source": ("x + row * columns,", "x + row * columns + 1,", "misaligned",
                            LOAD.replace("columns,", "columns + 1,", 1), "not a multiple of 16"),
    "a size that is no multiple": (LOAD, LOAD.replace("sizeof(float)", "sizeof(float) - 4"), "misaligned",
                                   LOAD.replace("sizeof(float)", "sizeof(float) - 4"), "size is 252 bytes"),
    "a copy beyond the tile": (LOAD, BEYOND, "out-of-bounds", BEYOND,
                               "writes 784 bytes at byte 0 of shared variable 'tile' .*, across its end"),
    "a copy beyond the tensor": (LOAD, LOAD.replace("columns,", "columns + 4,", 1), "out-of-bounds",
                                 LOAD.replace("columns,", "columns + 4,", 1), "across its end"),
    "no barrier after the initialisation": ("  __syncthreads();\n", "", "race", WAIT_FULL + ";", "races with a write"),
    "no initialisation": ("      init(&empty[s], consumers);\n", "", "barrier", WAIT_EMPTY + ";",
                          "is used without mbarrier.init"),
}  # fmt: skip


@pytest.mark.parametrize("name", quick(WRONG, 0, 3, 7, 10, 14))
def test_a_wrong_pipeline_is_named_with_its_line(name: str) -> None:
    before, after, kind, line, message = WRONG[name]
    one = finding(changed(before, after), kind, message)
    assert line in [one.source_line, *(caller.source_line for caller in one.callers)]


@needs_nvrtc
def test_nvrtc_takes_the_pipeline() -> None:
    assert ow.cuda_module(PIPELINE).compile("sm_90a").entries


# Threads hand values over a block's barrier: each writes its own, and reads that of the next.
HANDED_OVER = {
    "cuda::barrier": (
        "#include <cuda/barrier>",
        "__shared__ cuda::barrier<cuda::thread_scope_block> bar; if (i == 0) init(&bar, blockDim.x); __syncthreads();",
        "bar.arrive_and_wait();",
    ),
    "a token": (
        "#include <cuda/barrier>",
        "__shared__ cuda::barrier<cuda::thread_scope_block> bar; if (i == 0) init(&bar, blockDim.x); __syncthreads();",
        "auto token = bar.arrive(); bar.wait(std::move(token));",
    ),
    "mbarrier's state": (
        "#include <stdint.h>",
        "__shared__ uint64_t bar; unsigned at = (unsigned)__cvta_generic_to_shared(&bar);"
        ' if (i == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at), "r"(blockDim.x)); __syncthreads();',
        "uint64_t state; unsigned done = 0;"
        ' asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(at)); while (!done)'
        ' asm volatile("{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"'
        ' : "=r"(done) : "r"(at), "l"(state));',
    ),
}


def handed_over(form: str, *, waits: bool = True) -> str:
    include, begin, wait = HANDED_OVER[form]
    return f"""
    {include}
    #include <utility>
    __global__ void k(float* x) {{
      __shared__ float values[64];
      const int i = threadIdx.x;
      {begin}
      for (int step = 0; step < 3; step++) {{
        values[i] = x[i];
        {{ {wait if waits else "__syncwarp();"} }}
        x[i] = values[(i + 1) % 64];
        {{ {wait} }}
      }}
    }}
    """


@pytest.mark.parametrize("form", HANDED_OVER)
def test_what_a_thread_wrote_before_it_arrived_is_seen_by_those_that_wait(form: str) -> None:
    x = torch.arange(64.0)
    kernelsim.cuda(handed_over(form))["k"][1, 64](x)
    assert torch.equal(x, torch.arange(64.0).roll(-3))


@pytest.mark.parametrize("form", HANDED_OVER)
def test_without_the_wait_it_is_a_finding(form: str) -> None:
    with pytest.raises(kernelsim.FindingError, match=r"race: |uninitialised: "):
        kernelsim.cuda(handed_over(form, waits=False))["k"][1, 64](torch.arange(64.0))


@needs_nvrtc
@pytest.mark.parametrize("form", HANDED_OVER)
def test_nvrtc_takes_it(form: str) -> None:
    assert ow.cuda_module(handed_over(form)).compile("sm_90a").entries


COPIED = """
#include <cuda/barrier>
#include <cooperative_groups.h>
__global__ void k(const float* x, float* y) {
  __shared__ alignas(16) float tile[256];
  __shared__ cuda::barrier<cuda::thread_scope_block> bar;
  auto block = cooperative_groups::this_thread_block();
  if (threadIdx.x == 0) init(&bar, blockDim.x);
  block.sync();
  cuda::memcpy_async(block, tile, x, sizeof(tile), bar);
  bar.arrive_and_wait();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) y[i] = tile[255 - i];
}
"""


def test_a_copy_that_completes_on_a_barrier() -> None:
    x, y = torch.arange(256.0), torch.zeros(256)
    kernelsim.cuda(COPIED)["k"][1, 64](x, y)
    assert torch.equal(y, x.flip(0))
    with pytest.raises(kernelsim.FindingError, match="which an asynchronous copy fills that no thread has waited for"):
        kernelsim.cuda(COPIED.replace("bar.arrive_and_wait();", "block.sync();"))["k"][1, 64](x, y)


@needs_nvrtc
def test_nvrtc_takes_the_copy() -> None:
    assert ow.cuda_module(COPIED).compile("sm_90a").entries


def test_a_wait_that_times_out_may_do_something_else() -> None:
    text = """
    #include <stdint.h>
    __global__ void k(int* x) {  // one warp waits for another, which waits for the first to have tried
      __shared__ uint64_t bar;
      __shared__ int tried;
      unsigned at = (unsigned)__cvta_generic_to_shared(&bar), done = 0;
      if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at));
        tried = 0;
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        do {
          asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                       : "=r"(done) : "r"(at));
          atomicAdd(&tried, 1);
        } while (!done);
        x[0] = tried;
      } else if (threadIdx.x == 32) {
        while (atomicAdd(&tried, 0) == 0) __nanosleep(20);
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(at));
      }
    }
    """
    x = torch.zeros(1, dtype=torch.int32)
    with kernelsim.options(time_limit_s=20):
        kernelsim.cuda(text)["k"][1, 64](x)
    assert x.item() >= 2


OTHERS = """
#include <stdint.h>
__device__ bool is_over(unsigned at, unsigned parity) {
  unsigned done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done) : "r"(at), "r"(parity) : "memory");
  return done;
}
__global__ void k(const float* x, float* y, unsigned* counts) {
  __shared__ uint64_t bar;
  __shared__ alignas(16) float tile[4];
  const unsigned at = (unsigned)__cvta_generic_to_shared(&bar), to = (unsigned)__cvta_generic_to_shared(tile);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 3;" :: "r"(at) : "memory");
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 16;" :: "r"(at) : "memory");
  uint64_t state;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(at) : "memory");
  asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(counts[0]) : "l"(state));
  asm volatile("mbarrier.arrive_drop.shared::cta.b64 _, [%0];" :: "r"(at) : "memory");
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(x) : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(at) : "memory");
  counts[1] = is_over(at, 0);
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 16;" :: "r"(at) : "memory");
  while (!is_over(at, 0)) {}
  for (int i = 0; i < 4; i++) y[i] = tile[i];
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], 2;" : "=l"(state) : "r"(at) : "memory");
  counts[2] = is_over(at, 1);
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(at) : "memory");
}
"""


def test_the_other_operations_of_an_mbarrier() -> None:
    x, y, counts = torch.arange(4.0), torch.zeros(4), torch.full((3,), 9, dtype=torch.int32)
    kernelsim.cuda(OTHERS)["k"][1, 1](x, y, counts)
    assert torch.equal(y, x)
    assert counts.tolist() == [3, 0, 1]


def test_an_mbarrier_that_was_invalidated_is_none() -> None:
    used = OTHERS.replace('"r"(at) : "memory");\n}', '"r"(at) : "memory");\n  is_over(at, 0);\n}')
    with pytest.raises(kernelsim.FindingError, match=r"is used without mbarrier\.init"):
        kernelsim.cuda(used)["k"][1, 1](torch.zeros(4), torch.zeros(4), torch.zeros(3, dtype=torch.int32))


@needs_nvrtc
def test_nvrtc_takes_the_others() -> None:
    assert ow.cuda_module(OTHERS).compile("sm_90a").entries


# One thread waits for a copy that all read.
ONE_WAITS = """
#include <stdint.h>
__global__ void k(const float* x, float* y) {
  __shared__ uint64_t bar;
  __shared__ alignas(16) float tile[64];
  const unsigned at = (unsigned)__cvta_generic_to_shared(&bar);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" :: "r"(at) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
                 :: "r"((unsigned)__cvta_generic_to_shared(tile)), "l"(x), "r"(at) : "memory");
    unsigned done = 0;
    while (!done) {
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                   : "=r"(done) : "r"(at) : "memory");
    }
  }
  SYNC
  y[threadIdx.x] = tile[threadIdx.x];
}
"""


@pytest.mark.parametrize(("sync", "threads"), [("__syncthreads();", 64), ("__syncwarp();", 32)])
def test_a_barrier_hands_on_what_one_thread_waited_for(sync: str, threads: int) -> None:
    x, y = torch.arange(64.0), torch.zeros(64)
    kernelsim.cuda(ONE_WAITS.replace("SYNC", sync))["k"][1, threads](x, y)
    assert torch.equal(y[:threads], x[:threads])


@pytest.mark.parametrize(("sync", "threads"), [("", 64), ("__syncwarp();", 64)])
def test_without_a_barrier_the_others_have_not_waited(sync: str, threads: int) -> None:
    with pytest.raises(kernelsim.FindingError, match=r"race: read of 4 bytes .* with a write|uninitialised: "):
        kernelsim.cuda(ONE_WAITS.replace("SYNC", sync))["k"][1, threads](torch.arange(64.0), torch.zeros(64))
