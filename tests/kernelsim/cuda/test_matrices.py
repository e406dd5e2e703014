"""wmma, and asynchronous copies in the forms of C and C++, in the simulator."""

from __future__ import annotations

import pytest
import torch

import kernelsim

pytestmark = pytest.mark.compiler

WMMA = """
#include <mma.h>
using namespace nvcuda;
template <class T, class S, int M, int N, int K>
__global__ void product(const S* a, const S* b, float* c, int n, int k) {
  wmma::fragment<wmma::matrix_a, M, N, K, T, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, M, N, K, T, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, M, N, K, float> fc;
  wmma::fill_fragment(fc, 1.0f);
  for (int i = 0; i < k; i += K) {
    wmma::load_matrix_sync(fa, a + i, k);
    wmma::load_matrix_sync(fb, b + i, k);
    wmma::mma_sync(fc, fa, fb, fc);
  }
  for (int i = 0; i < fc.num_elements; i++) fc.x[i] *= 2;
  wmma::store_matrix_sync(c, fc, n, wmma::mem_row_major);
}
"""


@pytest.mark.parametrize(
    ("types", "shape", "dtype"),
    [
        ("half, half", (16, 16, 16), torch.float16),
        ("nv_bfloat16, nv_bfloat16", (32, 8, 16), torch.bfloat16),
        ("wmma::precision::tf32, float", (16, 16, 8), torch.float32),
    ],
)
def test_wmma_multiplies_fragments(types: str, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, n, k = shape
    a, b, c = torch.randint(-9, 9, (m, 32)).to(dtype) / 8, torch.randint(-9, 9, (n, 32)).to(dtype), torch.zeros(m, n)
    kernelsim.cuda(WMMA)[f"product<{types}, {m}, {n}, {k}>"][1, 32](a, b, c, n, 32)
    assert torch.equal(c, 2 * (a.float() @ b.float().T + 1))


def test_wrong_uses_of_wmma_are_found() -> None:
    product = "product<half, half, 16, 16, 16>"
    a, b, c = torch.zeros(16, 16).half(), torch.zeros(16, 16).half(), torch.zeros(16, 16)
    with pytest.raises(kernelsim.FindingError, match=r"out-of-bounds: reads 2 bytes,? .*past the end of argument 'a'"):
        kernelsim.cuda(WMMA)[product][1, 32](a[:, :8].contiguous(), b, c, 16, 16)
    shifted = WMMA.replace("load_matrix_sync(fa, a + i", "load_matrix_sync(fa, a + i + 1")
    with pytest.raises(
        kernelsim.FindingError, match=r"misaligned: the address of a wmma fragment .* not a multiple of 32"
    ):
        kernelsim.cuda(shifted)[product][1, 32](torch.zeros(17, 16).half(), b, c, 16, 16)
    with pytest.raises(kernelsim.FindingError, match="warp-mask"):  # half of the warp
        kernelsim.cuda(WMMA)[product][1, 16](a, b, c, 16, 16)
    with pytest.raises(kernelsim.CompileError, match="shape of a fragment does not exist"):
        kernelsim.cuda(WMMA)["product<half, half, 16, 8, 16>"][1, 32](a, b, c, 16, 16)


COPIES = {
    "primitives": (
        "#include <cuda_pipeline.h>",
        "__pipeline_memcpy_async(&tile[i], &x[i], 16); __pipeline_commit();",
        "__pipeline_wait_prior(0); __syncthreads();",
    ),
    "a thread's pipeline": (
        "#include <cuda/pipeline>",
        "auto pipe = cuda::make_pipeline(); pipe.producer_acquire();"
        " cuda::memcpy_async(&tile[i], &x[i], cuda::aligned_size_t<16>(16), pipe); pipe.producer_commit();",
        "pipe.consumer_wait(); __syncthreads(); pipe.consumer_release();",
    ),
    "a block's pipeline": (
        "#include <cuda/pipeline>\n#include <cooperative_groups.h>",
        "auto block = cooperative_groups::this_thread_block();"
        " __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;"
        " auto pipe = cuda::make_pipeline(block, &state); pipe.producer_acquire();"
        " cuda::memcpy_async(block, tile, x, sizeof(float) * 256, pipe); pipe.producer_commit();",
        "pipe.consumer_wait(); pipe.consumer_release();",
    ),
    "a group": (
        "#include <cooperative_groups/memcpy_async.h>\nnamespace cg = cooperative_groups;",
        "auto block = cg::this_thread_block(); cg::memcpy_async(block, tile, x, sizeof(float) * 256);",
        "cg::wait(block);",
    ),
}


def reversed_through_shared(form: str, *, waits: bool) -> torch.Tensor:
    header, copy, wait = COPIES[form]
    text = f"""
    {header}
    __global__ void k(const float* x, float* y) {{
      __shared__ __align__(16) float tile[256];
      int i = threadIdx.x * 4;
      {copy}
      {wait if waits else "__syncthreads();"}
      for (int n = 0; n < 4; n++) y[i + n] = tile[255 - i - n];
    }}
    """
    x, y = torch.arange(256.0), torch.zeros(256)
    kernelsim.cuda(text)["k"][1, 64](x, y)
    return y


@pytest.mark.parametrize("form", COPIES)
def test_asynchronous_copies_arrive_with_their_wait(form: str) -> None:
    assert torch.equal(reversed_through_shared(form, waits=True), torch.arange(255.0, -1, -1))


@pytest.mark.parametrize("form", COPIES)
def test_a_copy_that_is_not_waited_for_is_found(form: str) -> None:
    with pytest.raises(kernelsim.FindingError, match="which an asynchronous copy fills that no thread has waited for"):
        reversed_through_shared(form, waits=False)
