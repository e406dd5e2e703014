"""``cuda::atomic``, ``cuda::atomic_ref`` and those of ``cuda::std``: right and wrong kernels in the simulator, and on a
GPU."""

from __future__ import annotations

import re

import pytest
import torch

import kernelsim
import opwright as ow
from opwright.backends.cuda.nvrtc import available
from opwright.errors import CompileError, SimulatorError
from opwright.results import Refused
from tests.sampled import quick

pytestmark = pytest.mark.compiler
needs_nvrtc = pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")

TEXT = """
#include <cuda/atomic>
using Counter = cuda::atomic<int, cuda::thread_scope_block>;
__global__ void counts(const int* x, int* out, int n) {
  __shared__ Counter count;
  if (threadIdx.x == 0) count.store(0, cuda::memory_order_relaxed);
  __syncthreads();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && x[i] > 0) count.fetch_add(1, cuda::memory_order_relaxed);
  __syncthreads();
  cuda::atomic_ref<int, cuda::thread_scope_device> total(out[0]), most(out[1]), bits(out[2]);
  if (threadIdx.x == 0) {
    total += count.load();
    most.fetch_max(count);
    bits.fetch_or(1 << blockIdx.x);
  }
}
__global__ void handed_on(float* data, int* flag, float* out) {
  cuda::atomic_ref<int, cuda::thread_scope_device> ready(*flag);
  if (blockIdx.x == 0) {
    data[threadIdx.x] = threadIdx.x + 1.0f;
    __syncthreads();
    if (threadIdx.x == 0) ready.store(1, cuda::memory_order_release);
  } else {
    if (threadIdx.x == 0) {
      while (ready.load(cuda::memory_order_acquire) == 0) {}
    }
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];
  }
}
__global__ void locked(int* lock, float* sum) {
  cuda::atomic_ref<int, cuda::thread_scope_device> taken(*lock);
  if (threadIdx.x != 0) return;
  int free = 0;
  while (!taken.compare_exchange_weak(free, 1, cuda::memory_order_acquire, cuda::memory_order_relaxed)) free = 0;
  *sum += blockIdx.x;
  taken.store(0, cuda::memory_order_release);
}
__global__ void of_floats(float* sum, const float* x, int n) {
  cuda::atomic_ref<float, cuda::thread_scope_device> all(*sum);
  for (int i = threadIdx.x; i < n; i += blockDim.x) all.fetch_add(x[i], cuda::memory_order_relaxed);
}
"""

# The same with the names of cuda::std, of which only those of cuda have fetch_max.
STANDARD = re.sub(r"cuda::(atomic\w*<\w+), cuda::\w+>", r"cuda::std::\1>", TEXT)
STANDARD = STANDARD.replace("cuda::memory_order", "cuda::std::memory_order").replace(
    "<cuda/atomic>", "<cuda/std/atomic>"
)
STANDARD = STANDARD.replace(
    "most.fetch_max(count);",
    "for (int old = most.load(), mine = count; old < mine && !most.compare_exchange_weak(old, mine);) {}",
)
TEXTS = {"cuda": TEXT, "cuda::std": STANDARD}

# The functions on atomics, the names of types, and a flag as a lock.
FUNCTIONS = """
#include <cuda/std/atomic>
__global__ void functions(float* sum, int* out) {
  __shared__ cuda::std::atomic_flag taken;
  __shared__ cuda::std::atomic_int count;
  __shared__ float all;
  if (threadIdx.x == 0) {
    taken.clear();
    cuda::std::atomic_store_explicit(&count, 0, cuda::std::memory_order_relaxed);
    all = 0;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    while (taken.test_and_set(cuda::std::memory_order_acquire)) {}
    all += threadIdx.x;
    taken.clear(cuda::std::memory_order_release);
  }
  cuda::std::atomic_fetch_add(&count, 2);
  __syncthreads();
  int expected = 2 * blockDim.x;
  if (threadIdx.x == 0) {
    out[0] = cuda::std::atomic_compare_exchange_strong(&count, &expected, 7);
    out[1] = cuda::std::atomic_load(&count);
    sum[0] = all;
  }
}
"""


def run(text: str, name: str, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    module = ow.cuda_module(text)
    if name == "counts":
        x = torch.randint(-3, 3, (200,), generator=torch.Generator().manual_seed(0), dtype=torch.int32).to(device)
        out = torch.zeros(3, dtype=torch.int32, device=device)
        module[name][4, 64](x, out, 200)
        each = [int((part > 0).sum()) for part in x.split(64)]
        return out, torch.tensor([sum(each), max(each), 15], dtype=torch.int32)
    if name == "handed_on":
        data, out = torch.zeros(32, device=device), torch.zeros(32, device=device)
        module[name][2, 32](data, torch.zeros(1, dtype=torch.int32, device=device), out)
        return out, torch.arange(1.0, 33)
    total = torch.zeros(1, device=device)
    if name == "locked":
        module[name][8, 32](torch.zeros(1, dtype=torch.int32, device=device), total)
        return total, torch.tensor([28.0])
    module[name][1, 64](total, torch.ones(100, device=device), 100)
    return total, torch.tensor([100.0])


NAMES = ("counts", "handed_on", "locked", "of_floats")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("checked", quick([True, False], 0))
@pytest.mark.parametrize("names", quick(TEXTS, 0))
def test_a_right_kernel_is_left_alone(name: str, checked: bool, names: str) -> None:
    with kernelsim.options(checked=checked, time_limit_s=60):
        result, wanted = run(TEXTS[names], name, "cpu")
    assert torch.equal(result, wanted)


def functions(device: str, text: str = FUNCTIONS) -> list[float]:
    total, out = torch.zeros(1, device=device), torch.zeros(2, dtype=torch.int32, device=device)
    ow.cuda_module(text)["functions"][1, 128](total, out)
    return [total.item(), *out.tolist()]


def test_functions_on_atomics_and_a_flag() -> None:
    with kernelsim.options(time_limit_s=60):
        assert functions("cpu") == [0 + 32 + 64 + 96, 1, 7]


def test_a_flag_that_is_cleared_without_a_release_guards_nothing() -> None:
    wrong = FUNCTIONS.replace(
        "taken.clear(cuda::std::memory_order_release)", "taken.clear(cuda::std::memory_order_relaxed)"
    )
    with pytest.raises(SimulatorError, match="race") as raised, kernelsim.options(time_limit_s=60):
        functions("cpu", wrong)
    assert "all += threadIdx.x;" in str(raised.value)


def findings(text: str, name: str) -> str:
    with pytest.raises(SimulatorError) as raised, kernelsim.options(time_limit_s=60):
        run(text, name, "cpu")
    return str(raised.value)


@pytest.mark.parametrize("names", TEXTS)
def test_a_flag_that_releases_nothing_is_a_race(names: str) -> None:
    found = findings(
        TEXTS[names].replace(
            f"ready.store(1, {names}::memory_order_release)", f"ready.store(1, {names}::memory_order_relaxed)"
        ),
        "handed_on",
    )
    assert "race: read of 4 bytes" in found
    assert "out[threadIdx.x] = data[threadIdx.x];" in found


@pytest.mark.parametrize("names", TEXTS)
def test_a_plain_access_beside_an_atomic_one_is_a_race(names: str) -> None:
    assert "race" in findings(TEXTS[names].replace("total += count.load();", "out[0] += count.load();"), "counts")


def test_a_counter_without_a_value_is_reported() -> None:
    wrong = TEXT.replace("if (threadIdx.x == 0) count.store(0, cuda::memory_order_relaxed);", "")
    assert "uninitialised" in findings(wrong, "counts")


def test_an_atomic_out_of_bounds_is_reported_where_it_is_used() -> None:
    found = findings(TEXT.replace("bits(out[2])", "bits(out[3])"), "counts")
    assert "out-of-bounds" in found
    assert "bits.fetch_or(1 << blockIdx.x);" in found


@needs_nvrtc
@pytest.mark.parametrize("names", TEXTS)
def test_nvrtc_takes_them(names: str) -> None:
    assert len(ow.cuda_module(TEXTS[names]).compile("sm_90").entries) == len(NAMES)


@needs_nvrtc
def test_nvrtc_takes_the_functions() -> None:
    assert ow.cuda_module(FUNCTIONS).compile("sm_90").entries


@needs_nvrtc
def test_what_only_cuda_has_is_an_error_in_both() -> None:
    wrong = ow.cuda_module(STANDARD.replace("bits.fetch_or(", "bits.fetch_max("))
    with pytest.raises(CompileError, match="fetch_max"):
        wrong.compile("sm_90")
    with pytest.raises(CompileError, match="fetch_max"):
        wrong["counts"][1, 32](torch.zeros(1, dtype=torch.int32), torch.zeros(3, dtype=torch.int32), 1)


@pytest.mark.gpu
@pytest.mark.nvrtc
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("names", TEXTS)
def test_a_gpu_gives_the_same(name: str, names: str) -> None:
    result, wanted = run(TEXTS[names], name, "cuda")
    assert torch.equal(result.cpu(), wanted)


@pytest.mark.gpu
@pytest.mark.nvrtc
def test_a_gpu_gives_the_same_of_the_functions() -> None:
    assert functions("cuda") == [0 + 32 + 64 + 96, 1, 7]
