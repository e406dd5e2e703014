"""CUB's collectives of blocks and warps in the simulator; NVRTC compiles the same sources with CUB itself."""

from __future__ import annotations

import pytest
import torch

import kernelsim
import opwright as ow
from opwright.backends.cuda.nvrtc import available
from opwright.errors import CompileError
from opwright.results import Refused
from tests.sampled import sampled

pytestmark = pytest.mark.compiler
needs_nvrtc = pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")

INCLUDES = """
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>

struct Add { template <class T> __device__ T operator()(const T& a, const T& b) const { return a + b; } };
struct Larger { template <class T> __device__ T operator()(const T& a, const T& b) const { return a < b ? b : a; } };
"""
THREADS, ITEMS = 96, 3
N = THREADS * ITEMS

REDUCE = """
__global__ void k(const float* x, float* out, int valid) {
  using Reduce = cub::BlockReduce<float, 96>;
  __shared__ typename Reduce::TempStorage memory;
  float items[3];
  for (int i = 0; i < 3; i++) items[i] = x[threadIdx.x * 3 + i];
  const float sum = Reduce(memory).Sum(items);
  __syncthreads();
  const float largest = Reduce(memory).Reduce(items[0], Larger());
  __syncthreads();
  const float some = Reduce(memory).Reduce(items[0], Add(), valid);
  if (threadIdx.x == 0) { out[0] = sum; out[1] = largest; out[2] = some; }
}
"""
SCAN = """
struct Carry {
  float before;
  __device__ float operator()(float total) { const float old = before; before += total; return old; }
};
__global__ void k(const float* x, float* out, int) {
  using Scan = cub::BlockScan<float, 96, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage memory;
  float items[3], result[3], total;
  for (int i = 0; i < 3; i++) items[i] = x[threadIdx.x * 3 + i];
  Scan(memory).InclusiveSum(items, result);
  for (int i = 0; i < 3; i++) out[threadIdx.x * 3 + i] = result[i];
  __syncthreads();
  Scan(memory).ExclusiveSum(items, result, total);
  for (int i = 0; i < 3; i++) out[288 + threadIdx.x * 3 + i] = result[i];
  if (threadIdx.x == 0) out[3 * 288] = total;
  __syncthreads();
  Carry carry{100.0f};
  Scan(memory).InclusiveScan(items, result, Add(), carry);
  for (int i = 0; i < 3; i++) out[2 * 288 + threadIdx.x * 3 + i] = result[i];
  if (threadIdx.x == 0) out[3 * 288 + 1] = carry.before;
}
"""
MOVE = """
__global__ void k(const float* x, float* out, int valid) {
  using Load = cub::BlockLoad<float, 96, 3, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
  using Direct = cub::BlockLoad<float, 96, 3>;
  using Store = cub::BlockStore<float, 96, 3, cub::BLOCK_STORE_TRANSPOSE>;
  using Exchange = cub::BlockExchange<float, 96, 3>;
  __shared__ union {
    typename Load::TempStorage load; typename Direct::TempStorage direct; typename Store::TempStorage store;
    typename Exchange::TempStorage exchange;
  } memory;
  float items[3];
  Load(memory.load).Load(x, items, valid, -1.0f);
  for (int i = 0; i < 3; i++) out[threadIdx.x * 3 + i] = items[i];
  __syncthreads();
  Direct(memory.direct).Load(x, items);
  Store(memory.store).Store(out + 288, items, valid);
  __syncthreads();
  Direct(memory.direct).Load(x, items);
  Exchange(memory.exchange).BlockedToStriped(items, items);
  for (int i = 0; i < 3; i++) out[2 * 288 + threadIdx.x * 3 + i] = items[i];
}
"""
SORT = """
__global__ void k(const float* x, float* out, int) {
  using Sort = cub::BlockRadixSort<float, 96, 3, int>;
  __shared__ typename Sort::TempStorage memory;
  float keys[3];
  int places[3];
  for (int i = 0; i < 3; i++) { places[i] = threadIdx.x * 3 + i; keys[i] = x[places[i]]; }
  Sort(memory).Sort(keys, places);
  for (int i = 0; i < 3; i++) { out[threadIdx.x * 3 + i] = keys[i]; out[288 + threadIdx.x * 3 + i] = places[i]; }
}
"""
WARP = """
__global__ void k(const float* x, float* out, int valid) {
  using Reduce = cub::WarpReduce<float>;
  using Part = cub::WarpReduce<float, 8>;
  using Scan = cub::WarpScan<float>;
  __shared__ typename Reduce::TempStorage of_reduce[3];
  __shared__ typename Part::TempStorage of_part[12];
  __shared__ typename Scan::TempStorage of_scan[3];
  const int warp = threadIdx.x / 32;
  const float value = x[threadIdx.x];
  const float sum = Reduce(of_reduce[warp]).Sum(value), part = Part(of_part[threadIdx.x / 8]).Reduce(value, Larger());
  float inclusive, exclusive;
  Scan(of_scan[warp]).InclusiveSum(value, inclusive);
  Scan(of_scan[warp]).ExclusiveScan(value, exclusive, 0.0f, Add());
  if (threadIdx.x % 32 == 0) out[warp] = sum;
  if (threadIdx.x % 8 == 0) out[16 + threadIdx.x / 8] = part;
  out[96 + threadIdx.x] = inclusive;
  out[2 * 96 + threadIdx.x] = exclusive;
}
"""
SOURCES = {"reduce": REDUCE, "scan": SCAN, "move": MOVE, "sort": SORT, "warp": WARP}


def run(text: str, x: torch.Tensor, valid: int = N) -> torch.Tensor:
    out = torch.zeros(4 * N)
    kernelsim.cuda(INCLUDES + text)["k"][1, THREADS](x, out, valid)
    return out


def test_reductions() -> None:
    x = torch.randn(N)
    out = run(REDUCE, x, 40)
    assert torch.allclose(out[0], x.sum(), atol=1e-4)
    assert out[1] == x[::3].max()
    assert torch.allclose(out[2], x[::3][:40].sum(), atol=1e-5)


def test_scans() -> None:
    x = torch.randn(N)
    out = run(SCAN, x)
    sums = x.cumsum(0)
    assert torch.allclose(out[:N], sums, atol=1e-4)
    assert torch.allclose(out[N : 2 * N], torch.cat([torch.zeros(1), sums[:-1]]), atol=1e-4)
    assert torch.allclose(out[2 * N : 3 * N], 100 + sums, atol=1e-4)
    assert torch.allclose(out[3 * N : 3 * N + 2], torch.stack([sums[-1], 100 + sums[-1]]), atol=1e-4)


def test_loads_stores_and_exchanges() -> None:
    x = torch.randn(N)
    out = run(MOVE, x, 200)
    assert torch.equal(out[:N], torch.cat([x[:200], -torch.ones(N - 200)]))
    assert torch.equal(out[N : N + 200], x[:200])
    assert not out[N + 200 : 2 * N].any()
    assert torch.equal(out[2 * N : 3 * N], x.view(ITEMS, THREADS).T.flatten())


def test_sorts() -> None:
    x = torch.randn(N).round(decimals=1)  # some are equal: they stay in their order
    x[5], x[200] = -0.0, 0.0
    out = run(SORT, x)
    values, places = x.sort(stable=True)
    assert torch.equal(out[:N], values)
    assert torch.equal(out[N : 2 * N], places.float())
    striped = "i * 96 + threadIdx.x"
    descending = SORT.replace("Sort(keys", "SortDescendingBlockedToStriped(keys").replace(
        "out[threadIdx.x * 3 + i] = keys[i]; out[288 + threadIdx.x * 3 + i]",
        f"out[{striped}] = keys[i]; out[288 + {striped}]",
    )
    values, places = x.sort(stable=True, descending=True)
    assert torch.equal(run(descending, x)[: 2 * N], torch.cat([values, places.float()]))


def test_warps() -> None:
    x = torch.randn(N)
    out = run(WARP, x)
    rows = x[:THREADS].view(3, 32)
    assert torch.allclose(out[:3], rows.sum(1), atol=1e-5)
    assert torch.equal(out[16:28], x[:THREADS].view(12, 8).amax(1))
    assert torch.allclose(out[THREADS : 2 * THREADS].view(3, 32), rows.cumsum(1), atol=1e-5)
    before = torch.cat([torch.zeros(3, 1), rows.cumsum(1)[:, :-1]], 1)
    assert torch.allclose(out[2 * THREADS : 3 * THREADS].view(3, 32), before, atol=1e-5)


@pytest.mark.parametrize("name", ["reduce", "scan", "move"])
def test_memory_that_is_used_again_without_a_barrier_is_a_race(name: str) -> None:
    with pytest.raises(kernelsim.FindingError, match="race: "):
        run(SOURCES[name].replace("  __syncthreads();\n", ""), torch.randn(N))


def test_threads_that_leave_before_a_collective_are_named() -> None:
    text = REDUCE.replace("  float items[3];\n", "  float items[3];\n  if (threadIdx.x >= 90) return;\n")
    with pytest.raises(kernelsim.FindingError, match=r"barrier|lane"):
        run(text, torch.randn(N))


def test_another_thread_has_a_part_of_the_sum_only() -> None:
    x = torch.randn(N)
    out = run(REDUCE.replace("threadIdx.x == 0) { out", "threadIdx.x == 1) { out"), x)
    assert not torch.allclose(out[0], x.sum(), atol=1e-4)


def test_collectives_that_there_are_none_of_are_refused_and_their_headers_are_not() -> None:
    headers = "#include <cub/device/device_reduce.cuh>\n#include <cub/block/block_histogram.cuh>\n"
    used = "__shared__ cub::BlockHistogram<int, 32, 1, 8>::TempStorage memory; x[0] = sizeof memory;"
    x = torch.zeros(1)
    kernelsim.cuda(f"{headers}__global__ void k(float* x) {{ x[0] = cub::Max()(1, 2); }}")["k"][1, 1](x)
    assert x.item() == 2
    with pytest.raises(
        kernelsim.RefusedError, match=":3: cub::BlockHistogram: of CUB, the collectives of blocks and warps"
    ):
        kernelsim.cuda(f"{headers}__global__ void k(float* x) {{ {used} }}")["k"][1, 1](x)


@pytest.mark.slow  # NVRTC reads CUB in some seconds
@needs_nvrtc
@pytest.mark.parametrize("name", sampled(list(SOURCES), 3))
def test_nvrtc_compiles_the_same_with_cub_itself(name: str) -> None:
    assert ow.cuda_module(INCLUDES + SOURCES[name]).compile("sm_90").entries


@pytest.mark.parametrize("header", ["cub/cub.cuh", "cub/block/block_reduce.cuh"])
def test_algorithms_of_a_whole_device_are_refused_with_their_line(header: str) -> None:
    text = f"#include <{header}>\n__global__ void k(float* x) {{\n  cub::DeviceReduce::Sum(nullptr, *x, x, x, 1);\n}}\n"
    with pytest.raises(kernelsim.RefusedError, match=r":3: cub::DeviceReduce: CUB's algorithms of a whole device"):
        kernelsim.cuda(text)["k"][1, 1](torch.zeros(1))


@needs_nvrtc
def test_they_are_an_error_with_their_line_for_a_gpu() -> None:
    text = "#include <cub/cub.cuh>\n__global__ void k(float* x) {\n  cub::DeviceReduce::Sum(nullptr, *x, x, x, 1);\n}\n"
    with pytest.raises(CompileError, match=r"(?s)\(3\): error: .*DeviceReduce"):
        ow.cuda_module(text).compile("sm_90")
