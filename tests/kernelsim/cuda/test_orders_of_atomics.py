"""What atomics order: scenarios that are right, and each without something that makes it so. All are branches of one
kernel, whose argument says which they are. Values are not compared where something is wrong: as the simulator runs one
thread after another, they may be right."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import kernelsim
from kernelsim.errors import FindingError

pytestmark = pytest.mark.compiler

HEAD = """
#include <cuda/atomic>
using Flag = cuda::atomic_ref<int, cuda::thread_scope_device>;
constexpr auto relaxed = cuda::memory_order_relaxed, acquire = cuda::memory_order_acquire;
constexpr auto release = cuda::memory_order_release, both = cuda::memory_order_acq_rel;
__device__ int load_relaxed(const int* at) {
  int value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ int load_acquire(const int* at) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ void store_release(int* at, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" : : "l"(at), "r"(value) : "memory");
}
__device__ int2 load_two_relaxed(const int* at) {
  int2 v;
  asm volatile("ld.relaxed.gpu.global.v2.s32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at) : "memory");
  return v;
}
__device__ int2 load_two_acquire(const int* at) {
  int2 v;
  asm volatile("ld.acquire.gpu.global.v2.s32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at) : "memory");
  return v;
}
__device__ int2 load_two(const int* at) {
  int2 v;
  asm volatile("ld.global.v2.s32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at) : "memory");
  return v;
}
__device__ void store_two_release(int* at, int2 v) {
  asm volatile("st.release.gpu.global.v2.s32 [%0], {%1, %2};" : : "l"(at), "r"(v.x), "r"(v.y) : "memory");
}
__device__ void store_two_relaxed(int* at, int2 v) {
  asm volatile("st.relaxed.gpu.global.v2.s32 [%0], {%1, %2};" : : "l"(at), "r"(v.x), "r"(v.y) : "memory");
}
__device__ void add_relaxed(int* at, int value) {
  asm volatile("red.relaxed.gpu.global.add.s32 [%0], %1;" : : "l"(at), "r"(value) : "memory");
}
__device__ void fence_of_ptx() { asm volatile("fence.acq_rel.gpu;" : : : "memory"); }
"""

# By name: the body of a function of int* flags, float* data, float* out and int wrong. `wrong` is 0 if all is right.
SCENARIOS = {
    # A flag whose order is stated by fences.
    "fences": """
  if (blockIdx.x == 0) {
    data[threadIdx.x] = 1;
    if (wrong == 4 && threadIdx.x == 0) cuda::atomic_thread_fence(release);
    __syncthreads();
    if (threadIdx.x == 0) {
      if (wrong != 4) cuda::atomic_thread_fence(wrong == 3 ? acquire : release);
      Flag(flags[0]).store(1, relaxed);
    }
  } else {
    if (threadIdx.x == 0) {
      while (Flag(flags[0]).load(relaxed) == 0) {}
      if (wrong != 1) cuda::atomic_thread_fence(wrong == 2 ? release : acquire);
    }
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];  // fences
  }""",
    # Every thread fences for itself, before the barrier that the releasing thread passes and after the acquiring one's.
    "fences of all": """
  if (blockIdx.x == 0) {
    if (wrong == 1) __threadfence();
    data[threadIdx.x] = 1;
    if (wrong != 1) __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) Flag(flags[0]).store(1, relaxed);
  } else {
    if (threadIdx.x == 0) {
      while (Flag(flags[0]).load(relaxed) == 0) {}
    }
    __syncthreads();
    if (wrong != 2) __threadfence();
    out[threadIdx.x] = data[threadIdx.x];  // fences of all
  }""",
    # The counter of blocks that are done. The last block sets it back by a plain store.
    "last block": """
  __shared__ bool is_last;
  data[blockIdx.x * blockDim.x + threadIdx.x] = 0.5f;
  __syncthreads();
  const auto order = wrong == 1 ? release : wrong == 2 ? acquire : both;
  if (threadIdx.x == 0) is_last = Flag(flags[0]).fetch_add(1, order) == gridDim.x - 1;
  __syncthreads();
  if (is_last) {
    out[threadIdx.x] = data[threadIdx.x] + data[64 + threadIdx.x];  // last block
    if (threadIdx.x == 0) flags[0] = 0;
  }""",
    # The same in CUDA's own words, as NVIDIA's sample threadFenceReduction has it.
    "last block of CUDA": """
  __shared__ bool is_last;
  data[blockIdx.x * blockDim.x + threadIdx.x] = 0.5f;
  if (wrong != 1) __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicInc((unsigned*)flags, gridDim.x) == gridDim.x - 1;
  __syncthreads();
  if (is_last) {
    out[threadIdx.x] = data[threadIdx.x] + data[64 + threadIdx.x];  // last block of CUDA
    if (threadIdx.x == 0) flags[0] = 0;
  }""",
    # A lock of the whole block: one thread takes it and gives it back.
    "block's lock": """
  if (threadIdx.x == 0) {
    int free = 0;
    while (!Flag(flags[0]).compare_exchange_weak(free, 1, wrong == 1 ? relaxed : acquire, relaxed)) free = 0;
  }
  __syncthreads();
  data[threadIdx.x] += 0.5f;  // block's lock
  out[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) Flag(flags[0]).store(0, wrong == 2 ? relaxed : release);""",
    "block's lock of CUDA": """
  if (threadIdx.x == 0) {
    while (atomicCAS(flags, 0, 1) != 0) {}
    __threadfence();
  }
  __syncthreads();
  data[threadIdx.x] += 0.5f;  // block's lock of CUDA
  out[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    if (wrong != 1) __threadfence();
    atomicExch(flags, 0);
  }""",
    # Blocks take turns, as with Marlin's and CUTLASS's semaphores; the last one sets it back by a plain store.
    "turns": """
  if (threadIdx.x == 0) {
    while ((wrong == 1 ? load_relaxed(flags) : load_acquire(flags)) != blockIdx.x) {}
  }
  __syncthreads();
  data[threadIdx.x] += 0.5f;  // turns
  out[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0 && blockIdx.x == gridDim.x - 1) flags[0] = 0;
  if (threadIdx.x == 0 && blockIdx.x < gridDim.x - 1) {
    if (wrong != 2) fence_of_ptx();
    add_relaxed(flags, 1);
  }""",
    # A look-back over words that are read relaxed, with a fence once they are ready.
    "look-back": """
  if (threadIdx.x == 0) {
    float before = 0;
    if (blockIdx.x > 0) {
      while (load_relaxed(flags + blockIdx.x - 1) == 0) {}
      if (wrong != 1) __threadfence();
      before = data[blockIdx.x - 1];  // look-back
    }
    data[blockIdx.x] = before + 0.5f;
    store_release(flags + blockIdx.x, 1);
  }
  if (blockIdx.x == 0) out[threadIdx.x] = 1;""",
    # A message in shared memory between warps, without a barrier of the block.
    "between warps": """
  __shared__ float message[32];
  __shared__ cuda::atomic<int, cuda::thread_scope_block> ready;
  if (threadIdx.x == 0) ready.store(0, relaxed);
  __syncthreads();
  if (threadIdx.x < 32) {
    message[threadIdx.x] = 1;  // between warps
    __syncwarp();
    if (threadIdx.x == 0) ready.store(1, wrong == 1 ? relaxed : release);
  } else {
    if (threadIdx.x == 32) {
      while (ready.load(wrong == 2 ? relaxed : acquire) == 0) {}
    }
    __syncwarp();
    out[threadIdx.x - 32] = message[threadIdx.x - 32];  // between warps
    out[threadIdx.x] = 1;
  }""",
    # A counter that orders nothing: each place is taken once.
    "places": """
  const int place = Flag(flags[0]).fetch_add(1, relaxed);
  data[place] = 1;  // places
  out[place % 64] += data[wrong == 1 ? 0 : place];  // places
  """,
    # A value that one thread sets before a barrier, and all update after it.
    "set before": """
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  if (wrong != 1) __syncthreads();
  atomicAdd(&count, 1);  // set before
  __syncthreads();
  out[threadIdx.x] = count / 64;""",
    # The same of global memory, between blocks: a block's barrier does not order the second one.
    "set by a block": """
  if (blockIdx.x == 0 && wrong == 1 && threadIdx.x < 8) flags[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&flags[threadIdx.x % 8], 1);  // set by a block
  if (blockIdx.x == 0) out[threadIdx.x] = 1;""",
    # Two flags that are stored and loaded as a vector.
    "two flags": """
  if (blockIdx.x == 0) {
    data[threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x == 0 && wrong == 1) store_two_relaxed(flags, {1, 2});
    if (threadIdx.x == 0 && wrong != 1) store_two_release(flags, {1, 2});
  } else {
    if (threadIdx.x == 0) {
      int2 two;
      do {
        if (wrong == 2) two = load_two_relaxed(flags);
        if (wrong == 3) two = load_two(flags);  // two flags
        if (wrong != 2 && wrong != 3) two = load_two_acquire(flags);
      } while (two.x != 1 || two.y != 2);
    }
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];  // two flags
  }""",
    # A counter that one thread reads: all have counted before if its own update says so.
    "count": """
  int before = 0;
  if (wrong == 0) before = atomicAdd(flags, 1);
  if (wrong == 1 || wrong == 4) atomicAdd(flags, 1);
  if (wrong == 2) add_relaxed(flags, 1);
  if (wrong == 3) Flag(flags[0]).store(64, relaxed);
  if (wrong == 5 && threadIdx.x % 32 == 0) atomicAdd(flags, 1);
  if (wrong == 5) __syncwarp();
  const bool is_last = wrong ? threadIdx.x == 63 : before == 63;
  if (is_last && wrong != 4) out[0] = flags[0] / 64;  // count
  if (is_last && wrong == 4) flags[0] = 0;  // count
  __syncthreads();
  out[threadIdx.x] = wrong ? 0 : flags[0] / 64;""",
    # The same after a barrier.
    "count, then a barrier": """
  if (wrong == 1 && threadIdx.x == 63) atomicAdd(flags, 1); else atomicAdd(flags, 1);
  if (wrong == 0) __syncthreads();
  if (wrong == 0 || threadIdx.x == 63) out[threadIdx.x] = flags[0] / 64;  // count, then a barrier""",
    # Threads load plainly, then atomically, what nobody stores.
    "loads": """
  const int before = flags[threadIdx.x % 2];
  const int again = Flag(flags[0]).load(relaxed);
  if (wrong == 1 && threadIdx.x == 63) Flag(flags[0]).fetch_add(1);  // loads
  out[threadIdx.x] = 1 + before + again;""",
}
OF_ONE_BLOCK = {"between warps", "places", "set before", "loads", "count", "count, then a barrier"}
OF_THREE_BLOCKS = {"turns"}  # the last one sets back what two have updated


@dataclass(frozen=True)
class Wrong:
    """The scenario, and the number of what is wrong in it."""

    scenario: str
    number: int


WRONG = {
    "no acquiring fence": Wrong("fences", 1),
    "a fence that releases in place of one that acquires": Wrong("fences", 2),
    "a fence that acquires in place of one that releases": Wrong("fences", 3),
    "a fence of one thread, before the barrier": Wrong("fences", 4),
    "fences before the data": Wrong("fences of all", 1),
    "no fence of the readers": Wrong("fences of all", 2),
    "a counter that acquires nothing": Wrong("last block", 1),
    "a counter that releases nothing": Wrong("last block", 2),
    "a counter without a fence": Wrong("last block of CUDA", 1),
    "a lock that is taken relaxed": Wrong("block's lock", 1),
    "a lock that is given back relaxed": Wrong("block's lock", 2),
    "a lock that is given back without a fence": Wrong("block's lock of CUDA", 1),
    "turns that acquire nothing": Wrong("turns", 1),
    "turns that release nothing": Wrong("turns", 2),
    "a look-back without a fence": Wrong("look-back", 1),
    "a message that is sent relaxed": Wrong("between warps", 1),
    "a message that is taken relaxed": Wrong("between warps", 2),
    "another's place, without an order": Wrong("places", 1),
    "a value that is set without a barrier": Wrong("set before", 1),
    "a value that another block sets": Wrong("set by a block", 1),
    "two flags that release nothing": Wrong("two flags", 1),
    "two flags that acquire nothing": Wrong("two flags", 2),
    "two flags that are loaded without an order": Wrong("two flags", 3),
    "a plain load before an update by another": Wrong("loads", 1),
    "a count that no update tells": Wrong("count", 1),
    "a count that no update in PTX tells": Wrong("count", 2),
    "a count that a store does not tell": Wrong("count", 3),
    "a count that is set back though no update tells": Wrong("count", 4),
    "a count of another warp": Wrong("count", 5),
    "a count without a barrier": Wrong("count, then a barrier", 1),
}


def text() -> str:
    functions, calls = "", ""
    for number, body in enumerate(SCENARIOS.values()):
        functions += f"__device__ void s{number}(int* flags, float* data, float* out, int wrong) {{{body}\n}}\n"
        calls += f"  if (scenario == {number}) s{number}(flags, data, out, wrong);\n"
    kernel = f"__global__ void k(int scenario, int* flags, float* data, float* out, int wrong) {{\n{calls}}}\n"
    return HEAD + functions + kernel


def launch(scenario: str, wrong: int, seed: int | None = None) -> torch.Tensor:
    flags, data, out = torch.zeros(8, dtype=torch.int32), torch.zeros(256), torch.zeros(64)
    blocks = 1 if scenario in OF_ONE_BLOCK else 3 if scenario in OF_THREE_BLOCKS else 2
    with kernelsim.options(seed=seed, time_limit_s=60):
        kernelsim.cuda(text())["k"][blocks, 64](list(SCENARIOS).index(scenario), flags, data, out, wrong)
    return out


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_right_kernel_is_left_alone(scenario: str, seed: int | None) -> None:
    waits_for_earlier_blocks = scenario in ("fences", "fences of all", "turns", "look-back", "two flags")
    out = launch(scenario, 0, None if waits_for_earlier_blocks else seed)
    if scenario.startswith("block's lock") or scenario == "turns":  # each block adds a half
        assert out.max().item() == (1.5 if scenario in OF_THREE_BLOCKS else 1.0)
    else:
        assert torch.equal(out, torch.ones(64))


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_ordered_is_found(name: str) -> None:
    wrong = WRONG[name]
    with pytest.raises(FindingError) as raised:
        launch(wrong.scenario, wrong.number)
    lines = [finding.source_line for finding in raised.value.findings]
    assert {finding.kind for finding in raised.value.findings} == {"race"}, str(raised.value)
    assert any(line.endswith(f"// {wrong.scenario}") for line in lines), str(raised.value)


def test_an_ordered_vector_has_the_alignment_of_all_its_elements() -> None:
    kernel = kernelsim.cuda(HEAD + "__global__ void k(int* x) { x[6] = load_two_relaxed(x + x[7]).x; }")["k"]
    kernel[1, 1](torch.tensor([0] * 7 + [2], dtype=torch.int32))
    with pytest.raises(FindingError, match="misaligned"):
        kernel[1, 1](torch.tensor([0] * 7 + [1], dtype=torch.int32))
