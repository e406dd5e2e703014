"""What the checked simulator does at once for usual accesses, and blocks at the same time: nothing gets lost by it."""

from __future__ import annotations

import functools
import textwrap
from typing import Any

import pytest
import torch

import kernelsim
from kernelsim.cuda_sim import compilation
from kernelsim.cuda_sim import kernel as simulator
from kernelsim.errors import FindingError
from kernelsim.own_host import own_host
from kernelsim.text.source import CudaSource
from tests.kernelsim.loading import loaded
from tests.sampled import quick

pytestmark = pytest.mark.compiler


@functools.cache
def compiled(text: str, name: str) -> simulator.SimulatedKernel:
    source = CudaSource(textwrap.dedent(text))
    return loaded(compilation.compile_kernel(source, name, own_host(), checked=True))


def report(text: str, name: str, arguments: list[Any], grid: int = 1, block: int = 64, **options: Any) -> str:
    """All findings as one text; empty if there are none."""
    try:
        compiled(text, name).launch((grid, 1, 1), (block, 1, 1), 0, arguments, **options)
    except FindingError as error:
        return "\n".join(str(finding) for finding in error.findings)
    return ""


# --- one cell of the shadow for several elements ---

WIDTHS = """
__global__ void narrow_after_wide(float4* x, float* out, int barrier) {
  if (threadIdx.x < 16) x[threadIdx.x] = make_float4(1, 2, 3, 4);
  if (barrier) __syncthreads();
  out[threadIdx.x] = reinterpret_cast<float*>(x)[63 - threadIdx.x];
}
__global__ void wide_after_narrow(float* x, float4* out, int barrier) {
  x[threadIdx.x] = threadIdx.x;
  if (barrier) __syncthreads();
  if (threadIdx.x < 16) out[threadIdx.x] = reinterpret_cast<float4*>(x)[15 - threadIdx.x];
}
__global__ void other_parts_of_a_wide_cell(float4* x, float* out) {
  float* parts = reinterpret_cast<float*>(x);
  if (threadIdx.x == 0) x[0] = make_float4(1, 2, 3, 4);
  __syncthreads();
  if (threadIdx.x < 4) parts[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = threadIdx.x;
}
__global__ void halves_of_shared_words(unsigned short* out, int shift) {
  __shared__ unsigned short s[66];
  unsigned* words = reinterpret_cast<unsigned*>(s);
  if (threadIdx.x < 33) words[threadIdx.x] = 0;
  __syncthreads();
  s[threadIdx.x] = 1;
  out[threadIdx.x] = s[threadIdx.x + shift];
}
__global__ void copies_twelve_bytes(char* x, char* out) {
  memcpy(out + 12 * threadIdx.x, x + 12 * threadIdx.x, 12);
}
__global__ void writes_a_built_in(float* out) {
  out[threadIdx.x] = blockDim.x;
  uint3 mine;
  uint3* places[] = {&mine, const_cast<uint3*>(&blockDim)};
  places[gridDim.x]->x = 3;  // a place that the compiler does not know
}
"""


@pytest.mark.parametrize("name", ["narrow_after_wide", "wide_after_narrow"])
@pytest.mark.parametrize("seed", [None, 1])
def test_accesses_of_several_widths_race_unless_a_barrier_orders_them(name: str, seed: int | None) -> None:
    x, out = torch.zeros(64), torch.zeros(64)
    assert "race" in report(WIDTHS, name, [x, out, 0], seed=seed)
    assert report(WIDTHS, name, [x, out, 1], seed=seed) == ""


def test_parts_of_what_was_written_as_a_whole_are_apart() -> None:
    assert report(WIDTHS, "other_parts_of_a_wide_cell", [torch.zeros(4), torch.zeros(64)]) == ""
    out = torch.zeros(64, dtype=torch.int16)
    assert report(WIDTHS, "halves_of_shared_words", [out, 0]) == ""
    assert "race" in report(WIDTHS, "halves_of_shared_words", [out, 1])


def test_a_copy_of_a_few_bytes_is_examined() -> None:
    x = torch.arange(24, dtype=torch.int8)
    out = torch.zeros(24, dtype=torch.int8)
    assert report(WIDTHS, "copies_twelve_bytes", [x, out], block=2) == ""
    assert torch.equal(out, x)
    assert "out-of-bounds: writes 12 bytes" in report(WIDTHS, "copies_twelve_bytes", [x, out[:20]], block=2)


def test_reading_a_built_in_variable_is_right_and_writing_it_is_not() -> None:
    out = torch.zeros(64)
    assert "out-of-bounds" in report(WIDTHS, "writes_a_built_in", [out])
    assert out[0] == 64


# --- lanes that synchronise ---

LANES = """
__global__ void neighbours(int* x, unsigned mask, int step) {
  __shared__ int s[64];
  s[threadIdx.x] = threadIdx.x;
  if (mask >> (threadIdx.x % 32) & 1) __syncwarp(mask);
  x[threadIdx.x] = threadIdx.x + step < blockDim.x ? s[threadIdx.x + step] : 0;
}
struct Wide { int v[5]; };
__global__ void shuffles(int* out, double* sums) {
  Wide mine = {{int(threadIdx.x), 1, 2, 3, int(threadIdx.x) * 2}};
  Wide other = __shfl_xor_sync(0xffffffffu, mine, 1);
  out[threadIdx.x] = other.v[0] + other.v[4];
  sums[threadIdx.x] = __shfl_down_sync(0xffffffffu, double(threadIdx.x), 3, 8);
}
"""


def test_a_barrier_of_a_warp_orders_its_lanes_and_no_others() -> None:
    whole, half = 0xFFFFFFFF, 0xFFFF
    x = torch.zeros(64, dtype=torch.int32)
    assert report(LANES, "neighbours", [x, whole, 0]) == ""
    assert report(LANES, "neighbours", [x, whole, 1], block=32) == ""
    assert report(LANES, "neighbours", [x, half, 1], block=16) == ""
    assert "race" in report(LANES, "neighbours", [x, half, 1], block=32)  # lanes 15 to 31
    assert "race" in report(LANES, "neighbours", [x, whole, 1])  # lane 31 reads what the next warp writes


def test_shuffles_of_any_size() -> None:
    out, sums = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.float64)
    assert report(LANES, "shuffles", [out, sums]) == ""
    lane = torch.arange(64)
    assert torch.equal(out, 3 * (lane ^ 1).int())
    assert torch.equal(sums, torch.where(lane % 8 < 5, lane + 3, lane).double())


# --- blocks at the same time ---

BLOCKS = """
#include <stdio.h>
__device__ float worked(float v, int times) {  // long enough that blocks run at the same time
  for (int i = 0; i < times; i++) v = v * 0.5f + 1.0f;
  return v;
}
__global__ void independent(const float* x, float* out, int times) {
  __shared__ float s[64];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  s[threadIdx.x] = worked(x[i], times);
  __syncthreads();
  out[i] = s[63 - threadIdx.x];
}
__global__ void shifts(float* x, int times, int last) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float v = worked(x[i], times);
  x[blockIdx.x == last ? i - 64 : i] = v;
}
__global__ void reads_what_another_wrote(float* x, float* out, int times, int block) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = worked(x[0], times);
  if (blockIdx.x == block && threadIdx.x == 0) x[0] += 1.0f;
}
__global__ void takes_tickets(int* ticket, int* out, float* waste, int times) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  waste[i] = worked(waste[i], times);
  if (blockIdx.x >= 8) out[atomicAdd(ticket, 1)] = i;
}
__global__ void leaves_its_tensor(float* x, int times, int last) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  x[i] = worked(x[i], times);
  if (blockIdx.x == last) x[i + 64] = 0.0f;
}
__global__ void says(float* x, int times) {
  x[blockIdx.x] = worked(x[blockIdx.x], times);
  if (threadIdx.x == 0) printf("%d ", int(blockIdx.x));
}
"""
GRID, TIMES = 48, 8000


def in_order_and_together(
    name: str, tensors: list[torch.Tensor], numbers: list[int], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> str:
    """The report, after a comparison of launches on one OS thread with launches on four."""
    seen = []
    for cores in (1, 4):
        monkeypatch.setattr(own_host(), "cores", lambda cores=cores: cores)
        own = [tensor.clone() for tensor in tensors]
        fresh = [own[-1]] if options.get("fresh") else []
        found = report(BLOCKS, name, [*own, *numbers], GRID, seed=options.get("seed"), uninitialised=fresh)
        seen.append((found, own))
    (first, one), (second, other) = seen
    assert first == second
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    return first


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("fresh", [False, True])
def test_independent_blocks_compute_the_same_together(
    seed: int | None, fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(GRID * 64)
    found = in_order_and_together("independent", [x, torch.zeros_like(x)], [TIMES], monkeypatch, seed=seed, fresh=fresh)
    assert found == ""


@pytest.mark.parametrize("seed", [None, 3])
def test_blocks_that_are_not_independent_are_reported_as_in_order(
    seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(GRID * 64)
    race = in_order_and_together("shifts", [x], [TIMES, GRID - 1], monkeypatch, seed=seed)
    assert "race: " in race
    assert "blocks are not ordered" in race
    race = in_order_and_together(
        "reads_what_another_wrote", [x, torch.zeros_like(x)], [TIMES, GRID - 2], monkeypatch, seed=seed
    )
    assert "race: " in race
    outside = in_order_and_together("leaves_its_tensor", [x], [TIMES, GRID - 1], monkeypatch, seed=seed)
    assert "out-of-bounds: writes 4 bytes" in outside


@pytest.mark.parametrize("seed", [None, 3])
def test_atomics_of_blocks_keep_their_order(seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket, out = torch.zeros(1, dtype=torch.int32), torch.zeros(GRID * 64, dtype=torch.int32)
    tensors = [ticket, out, torch.zeros(GRID * 64)]
    assert in_order_and_together("takes_tickets", tensors, [TIMES], monkeypatch, seed=seed) == ""


def test_blocks_print_in_order(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(own_host(), "cores", lambda: 4)
    assert report(BLOCKS, "says", [torch.zeros(GRID), 64 * TIMES], GRID, block=1) == ""
    assert capfd.readouterr().out.split() == [str(block) for block in range(GRID)]


# --- many threads that fence and use atomics ---

MANY_RELEASES = """
__global__ void passed_on(float* x, int* flags, float* out, int fenced) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  x[i] = i;
  for (int r = 0; r < 3; ++r) {
    if (fenced) __threadfence();
    atomicAdd(&flags[(i + r) % 8], 1);
    __syncthreads();
  }
  __shared__ int last;
  if (threadIdx.x == 0) {
    if (fenced) __threadfence();
    last = atomicAdd(&flags[8], 1);
  }
  __syncthreads();
  if (last == gridDim.x - 1) {  // the last block reads what the others wrote
    if (fenced) __threadfence();
    for (int j = threadIdx.x; j < gridDim.x * blockDim.x; j += blockDim.x) out[j] = x[j];
  }
}
"""


def test_the_search_through_atomics_is_not_exponential() -> None:
    x, flags, out = torch.zeros(192), torch.zeros(9, dtype=torch.int32), torch.zeros(192)
    assert report(MANY_RELEASES, "passed_on", [x, flags, out, 1], grid=3) == ""
    assert torch.equal(out, torch.arange(192.0))
    flags.zero_()
    assert "race" in report(MANY_RELEASES, "passed_on", [x, flags, out, 0], grid=3)


SHARED_ATOMICS = """
__global__ void counts(const int* x, TYPE* out) {
  __shared__ TYPE bins[8];
  if (threadIdx.x < 8) bins[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&bins[x[threadIdx.x]], (TYPE)1);
  __syncthreads();
  if (threadIdx.x < 8) out[threadIdx.x] = bins[threadIdx.x];
}
"""
# What is taken away, and what is then found.
WRONG_ATOMICS = {
    "no barrier before": ("= 0;\n  __syncthreads();", "= 0;", {"race", "uninitialised"}),
    "no barrier after": ("(TYPE)1);\n  __syncthreads();", "(TYPE)1);", {"race"}),
    "a plain update": ("atomicAdd(&bins[x[threadIdx.x]], (TYPE)1)", "bins[x[threadIdx.x]] += 1", {"race"}),
    "a plain read between": ("(TYPE)1);", "(TYPE)1); if (threadIdx.x == 9) out[0] = bins[0];", {"race"}),
    "an index too far": ("&bins[x[threadIdx.x]]", "bins + x[threadIdx.x] + 4", {"out-of-bounds"}),
    "no values": ("if (threadIdx.x < 8) bins[threadIdx.x] = 0;", "", {"uninitialised"}),
}


def counted(text: str, dtype: str, seed: int | None) -> torch.Tensor:
    x = (torch.arange(128) * 5 % 8).int()
    out = torch.zeros(8, dtype=torch.int32 if dtype == "int" else torch.int64)
    with kernelsim.options(seed=seed):
        kernelsim.cuda(text.replace("TYPE", dtype))["counts"][1, 128](x, out)
    return out


@pytest.mark.parametrize("dtype", ["int", "unsigned long long"])
@pytest.mark.parametrize("seed", [None, 3])
def test_atomics_of_shared_memory_are_left_alone(dtype: str, seed: int | None) -> None:
    assert counted(SHARED_ATOMICS, dtype, seed).tolist() == [16] * 8


@pytest.mark.parametrize("dtype", ["int", "unsigned long long"])
@pytest.mark.parametrize("name", quick(WRONG_ATOMICS, every=3))
def test_wrong_atomics_of_shared_memory_are_found(name: str, dtype: str) -> None:
    before, after, kinds = WRONG_ATOMICS[name]
    assert before in SHARED_ATOMICS
    with pytest.raises(FindingError) as raised:
        counted(SHARED_ATOMICS.replace(before, after), dtype, 3)
    assert {finding.kind for finding in raised.value.findings} & kinds, str(raised.value)
