"""Reads of shared memory that no thread wrote: findings where the launch depends on them, else nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import kernelsim
from kernelsim.cuda_kernels import CudaKernels
from kernelsim.errors import FindingError

pytestmark = pytest.mark.compiler

# Each kernel copies `rows` rows of 32 numbers into a tile of 8, and reads all 8.
TILES = """\
#include <cuda_fp16.h>
#include <stdio.h>
#define TILE(T)                                                     \\
  __shared__ T tile[8][32];                                         \\
  const int i = threadIdx.x, row = threadIdx.y;                     \\
  if (row < rows) tile[row][i] = x[row * 32 + i];                   \\
  __syncthreads();

template <class T>
__global__ void thrown_away(const T* x, T* y, int rows) {
  TILE(T)
  T sum = 0;
  for (int k = 0; k < 32; k++) sum += tile[row][k];
  if (row < rows) y[row * 32 + i] = sum;
}
__device__ float total;
__global__ void in_place(float* x, int* count, int rows) {
  TILE(float)
  float sum = 0;
  for (int k = 0; k < 32; k++) sum += tile[row][k];
  if (row < rows) x[row * 32 + i] += sum;
  if (row < rows) atomicAdd(count, 1);
  if (row < rows) atomicAdd(&total, 1.0f);
}
__global__ void copied_within(const float* x, float* y, int rows) {
  __shared__ float other[8][32];
  TILE(float)
  other[row][i] = tile[row][i];
  __syncthreads();
  if (row < rows) y[row * 32 + i] = other[row][31 - i];
}
__global__ void stored(const float* x, float* y, int rows) {
  TILE(float)
  y[row * 32 + i] = tile[row][i];  // found
}
__global__ void stored_from_a_copy(const float* x, float* y, int rows) {
  __shared__ float other[8][32];
  TILE(float)
  other[row][i] = tile[row][i];  // found
  __syncthreads();
  y[row * 32 + i] = other[row][31 - i];
}
__global__ void times_zero(const float* x, float* y, int rows) {
  TILE(float)
  const float scale = rows > 7 ? 1.0f : 0.0f;
  if (row == 0) y[i] = tile[0][i] + scale * tile[7][i];  // found
}
__global__ void swallowed(const float* x, float* y, int rows) {
  TILE(float)
  if (row == 0) y[i] = fmaxf(tile[0][i], tile[7][i]);  // found
}
__global__ void whole_numbers(const signed char* x, signed char* y, int rows) {
  TILE(signed char)
  if (row == 0) y[i] = tile[0][i] + tile[7][i];  // found
}
__global__ void compared(const float* x, float* y, int rows) {
  TILE(float)
  if (row == 0 && tile[7][i] == 0.0f) y[i] = 1.0f;  // found
}
__global__ void negative(const float* x, float* y, int rows) {
  TILE(float)
  if (row == 0 && tile[7][i] < 0.0f) y[i] = 1.0f;  // found
}
__global__ void places(const float* x, float* y, int rows) {
  __shared__ unsigned at[32];
  TILE(float)
  if (row == 0 && i == 0) y[at[i] % 32u] = tile[0][i];  // found
}
__global__ void flags(const float* x, float* y, int rows) {
  __shared__ int done;
  TILE(float)
  if (done) return;  // found
  if (row == 0) y[i] = tile[0][i];
}
__global__ void counted(const float* x, float* y, int rows) {
  __shared__ int count;
  TILE(float)
  atomicAdd(&count, 1);  // found
  if (row == 0) y[i] = tile[0][i];
}
__global__ void prints(const float* x, float* y, int rows) {
  TILE(float)
  const float v = 2 * tile[row][i];  // found
  if (row < rows) y[row * 32 + i] = v;
  if (x[0] == -1000) printf("never");
}
__global__ void races_too(const float* x, float* y, int rows) {
  TILE(float)
  float sum = 0;
  for (int k = 0; k < 32; k++) sum += tile[row][k];
  if (row < rows) y[i] = sum;  // found
}
"""


@pytest.fixture(scope="module")
def tiles() -> CudaKernels:
    return kernelsim.cuda(TILES)


def launch(tiles: CudaKernels, name: str, x: torch.Tensor, y: torch.Tensor, rows: int, blocks: int = 1) -> Any:
    """The kinds and lines of the findings."""
    try:
        tiles[name][blocks, (32, 8)](x, y, rows)
    except FindingError as error:
        return [(found.kind, found.line) for found in error.findings]
    return []


@pytest.mark.parametrize(("name", "dtype"), [("thrown_away<float>", torch.float32), ("thrown_away<half>", torch.half),
                                             ("thrown_away<int>", torch.int32)])  # fmt: skip
def test_what_is_thrown_away_is_no_finding(tiles, name, dtype):
    x, y = torch.randint(-4, 5, (8, 32)).to(dtype), torch.full((8, 32), 7).to(dtype)
    assert launch(tiles, name, x, y, 5) == []
    assert torch.equal(y[:5], x[:5].sum(1, keepdim=True).expand(5, 32).to(dtype))
    assert (y[5:] == 7).all()


def test_a_copy_within_shared_memory_is_no_use(tiles):
    x, y = torch.randn(8, 32), torch.zeros(8, 32)
    assert launch(tiles, "copied_within", x, y, 5) == []
    assert torch.equal(y[:5], x[:5].flip(1))


def test_a_launch_that_was_repeated_has_run_once(tiles):
    """What it adds to its arguments and variables is added once."""
    x, count = torch.ones(8, 32), torch.zeros(1, dtype=torch.int32)
    tiles.write("total", np.float32(0))
    for launches in (1, 2):
        assert launch(tiles, "in_place", x, count, 5) == []
        assert count.item() == launches * 5 * 32
        assert tiles.read("total", "float32").item() == launches * 5 * 32
    assert torch.equal(x[:5], torch.full((5, 32), 33.0 * 33.0))
    assert torch.equal(x[5:], torch.ones(3, 32))


DEPEND = ["stored", "stored_from_a_copy", "times_zero", "swallowed", "whole_numbers", "compared", "negative", "places",
          "flags"]  # fmt: skip
NEVER_WRITTEN = ("places", "flags")


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("name", DEPEND)
def test_what_the_launch_depends_on_is_found(tiles, name, seed):
    dtype = torch.int8 if name == "whole_numbers" else torch.float32
    x, y = torch.randint(-4, 5, (8, 32)).to(dtype), torch.zeros(8, 32, dtype=dtype)
    if name == "places":
        x[x == 0] = 1  # else one place that is written may keep its zero
    with kernelsim.options(seed=seed):
        assert launch(tiles, name, x, y, 5) == [("uninitialised", line_of(name))]
        if name not in NEVER_WRITTEN:
            assert launch(tiles, name, x, torch.zeros(8, 32, dtype=dtype), 8) == []


def line_of(name: str) -> int:
    lines = TILES.splitlines()
    begin = next(i for i, line in enumerate(lines) if f"void {name}(" in line)
    return next(i for i, line in enumerate(lines[begin:], begin + 1) if "// found" in line)


@pytest.mark.parametrize("name", ["counted", "prints"])
def test_what_is_reported_without_a_repeat(tiles, name):
    """An atomic update, and a kernel whose output would be seen twice."""
    assert launch(tiles, name, torch.randn(8, 32), torch.zeros(8, 32), 5) == [("uninitialised", line_of(name))]


def test_another_finding_does_not_make_it_one(tiles):
    assert launch(tiles, "races_too", torch.randn(8, 32), torch.zeros(8, 32), 5) == [("race", line_of("races_too"))]


def test_memory_is_as_the_first_run_left_it(tiles):
    y = torch.zeros(8, 32)
    assert launch(tiles, "stored", torch.ones(8, 32), y, 5) != []
    assert (y[:5] == 1).all()
    assert y[5:].isnan().all()


def test_many_blocks(tiles):
    """The blocks of a launch that is repeated may run on several OS threads."""
    x, y = torch.randn(8, 32), torch.zeros(8, 32)
    assert launch(tiles, "stored", x, y, 5, blocks=64) != []
    assert launch(tiles, "copied_within", x, y, 5, blocks=1) == []


ASYNCHRONOUS = """\
__global__ void %s(const float4* x, float* y, int rows) {
  __shared__ float4 tile[8][8];
  const int i = threadIdx.x, row = threadIdx.y;
  if (row < rows && i < 8)
    asm volatile("cp.async.cg.shared.global [%%0], [%%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(&tile[row][i])),
                 "l"(&x[row * 8 + i]));
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group %d;");
  __syncthreads();
  const float v = reinterpret_cast<float*>(&tile[row][0])[i];  // found
  if (row < %s) y[row * 32 + i] = v;
}
"""


def test_a_copy_that_was_not_waited_for_is_found_whatever_becomes_of_it():
    x, y = torch.randn(8, 32), torch.zeros(8, 32)
    right = kernelsim.cuda(ASYNCHRONOUS % ("waits", 0, "rows"))
    assert launch(right, "waits", x, y, 5) == []
    assert torch.equal(y[:5], x[:5])
    wrong = kernelsim.cuda(ASYNCHRONOUS % ("does_not_wait", 1, "0"))
    assert ("uninitialised", 10) in launch(wrong, "does_not_wait", x, y, 5)
    used = kernelsim.cuda(ASYNCHRONOUS % ("uses_too_much", 0, "8"))
    assert launch(used, "uses_too_much", x, y, 5) == [("uninitialised", 10)]


# A product of 16 x 8 with k = 16 by one warp, of matrices of which only some rows are copied into shared memory.
PRODUCT = """\
#include <cuda_fp16.h>
__global__ void product(const half* a, const half* b, float* c, int m, int n, int stored) {
  __shared__ __align__(16) half as[16][16], bs[8][16];
  const int lane = threadIdx.x;
  for (int i = lane; i < m * 16; i += 32) as[i / 16][i % 16] = a[i];
  for (int i = lane; i < n * 16; i += 32) bs[i / 16][i % 16] = b[i];
  __syncthreads();
  unsigned fa[4], fb[2];
  float d[4] = {};
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"  // rows of a
               : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3])
               : "r"((unsigned)__cvta_generic_to_shared(&as[lane % 16][lane / 16 * 8])));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"  // rows of b
               : "=r"(fb[0]), "=r"(fb[1])
               : "r"((unsigned)__cvta_generic_to_shared(&bs[lane % 8][lane / 8 % 2 * 8])));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
  for (int i = 0; i < 4; i++) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    if (row < stored && column < n) c[row * n + column] = d[i];
  }
}
"""


@pytest.fixture(scope="module")
def products() -> CudaKernels:
    return kernelsim.cuda(PRODUCT)


def multiply(products: CudaKernels, m: int, n: int, stored: int) -> tuple[list[tuple[str, int]], bool]:
    a, b, c = torch.randn(16, 16).half(), torch.randn(8, 16).half(), torch.zeros(16 * n)
    wanted = a[:m].float() @ b[:n].float().T
    try:
        products["product"][1, 32](a, b, c, m, n, stored)
    except FindingError as error:
        return [(found.kind, found.line) for found in error.findings], False
    return [], torch.allclose(c[: m * n].view(m, n), wanted, atol=1e-5)


@pytest.mark.parametrize(("m", "n"), [(16, 8), (13, 8), (16, 5), (3, 1)])
def test_a_product_whose_matrices_do_not_fill_the_tile(products, m, n):
    assert multiply(products, m, n, stored=m) == ([], True)


def test_a_product_that_stores_a_row_which_was_never_copied(products):
    (line,) = (i for i, text in enumerate(PRODUCT.splitlines(), 1) if "// rows of a" in text)
    assert multiply(products, 13, 8, stored=14) == ([("uninitialised", line)], False)
