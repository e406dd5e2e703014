"""Bulk copies out of shared memory, and of the boxes of tensor maps, in the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import opwright as ow
from opwright.backends.cuda.nvrtc import available
from opwright.errors import LaunchError, SimulatorError
from opwright.results import Refused
from tests.sampled import quick

pytestmark = pytest.mark.compiler
needs_nvrtc = pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")

BOXES = (Path(__file__).parent / "kernels" / "boxes.cu").read_text()


def copied(text: str, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's result and the right one, of a matrix that is no multiple of the box."""
    rows, columns = 40, 136
    x = torch.randint(0, 999, (rows, columns), dtype=torch.int16).view(torch.float16).to(device)
    y = torch.zeros_like(x)
    maps = [ow.tensor_map(t, (16, 64), swizzle=128) for t in (x, y)]
    ow.cuda_module(text)["boxes"][(ow.cdiv(columns, 64), ow.cdiv(rows, 16)), 128](*maps)
    wanted = 2 * x.view(torch.int16) + torch.arange(columns, dtype=torch.int16, device=device) % 64
    return y.view(torch.int16), wanted


def test_boxes_are_copied_in_and_out_as_far_as_they_lie_in_the_tensor() -> None:
    y, wanted = copied(BOXES)
    assert torch.equal(y, wanted)


@needs_nvrtc
def test_nvrtc_takes_the_boxes() -> None:
    assert ow.cuda_module(BOXES).compile("sm_90a").entries


# The same kernel with libcu++'s names.
LIBCU = """
#include <cuda.h>
#include <cuda/barrier>
#include <utility>
namespace cde = cuda::device::experimental;
__global__ void boxes(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap y) {
  __shared__ alignas(1024) unsigned short in[1024], out[1024];
  __shared__ cuda::barrier<cuda::thread_scope_block> bar;
  const int column = blockIdx.x * 64, row = blockIdx.y * 16;
  if (threadIdx.x == 0) {
    init(&bar, blockDim.x);
    cde::fence_proxy_async_shared_cta();
  }
  __syncthreads();
  cuda::barrier<cuda::thread_scope_block>::arrival_token token;
  if (threadIdx.x == 0) {
    cde::cp_async_bulk_tensor_2d_global_to_shared(in, &x, column, row, bar);
    token = cuda::device::barrier_arrive_tx(bar, 1, sizeof(in));
  } else {
    token = bar.arrive();
  }
  bar.wait(std::move(token));
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
    const int swizzled = i ^ (i / 64 % 8 * 8);
    out[swizzled] = 2 * in[swizzled] + i % 64;
  }
  cde::fence_proxy_async_shared_cta();
  __syncthreads();
  if (threadIdx.x == 0) {
    cde::cp_async_bulk_tensor_2d_shared_to_global(&y, column, row, out);
    cde::cp_async_bulk_commit_group();
    cde::cp_async_bulk_wait_group_read<0>();
  }
}
"""


def test_the_same_with_libcus_names() -> None:
    y, wanted = copied(LIBCU)
    assert torch.equal(y, wanted)
    with pytest.raises(SimulatorError, match=r"no fence\.proxy\.async between them"):
        copied(
            LIBCU.replace(
                "  cde::fence_proxy_async_shared_cta();\n  __syncthreads();\n  if", "  __syncthreads();\n  if"
            )
        )


@needs_nvrtc
@pytest.mark.slow  # NVRTC with libcu++
def test_nvrtc_takes_libcus_names() -> None:
    assert ow.cuda_module(LIBCU).compile("sm_90a").entries


WRONG = {
    "no fence for what threads wrote": (
        '  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n', "",
        "race: read of 2048 bytes at byte 0 of shared variable 'out' .* no fence.proxy.async between them"),
    "a copy before the others have written": (
        '::: "memory");\n  __syncthreads();\n  if', '::: "memory");\n  if', "race: |uninitialised: "),
    "the pattern of another tile": ("i ^ (i / 64 % 8 * 8)", "i ^ 1024", "out-of-bounds"),
    "half of the bytes": ('"r"(2048)', '"r"(1024)', r"waited for without end: .* -1024 bytes"),
    "a tile that is not aligned": ('"r"(shared_address(out))', '"r"(shared_address(out) + 64)',
                                   "misaligned: a bulk copy of a tensor's box through .* not a multiple of 128"),
    "a tile that is used again before it was read": (
        '    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");\n', "    out[0] = 1;\n",
        r"race: write of 2 bytes at byte 0 of shared variable 'out' .* races with a read"),
    "another number of dimensions": ("bulk.tensor.2d.global", "bulk.tensor.3d.global",
                                     "another number of coordinates"),
}  # fmt: skip


@pytest.mark.parametrize("name", quick(WRONG, 0, 3))
def test_a_wrong_copy_of_a_box_is_named(name: str) -> None:
    before, after, message = WRONG[name]
    assert before in BOXES
    with pytest.raises((SimulatorError, ow.errors.KernelRefusedError), match=message):
        copied(BOXES.replace(before, after))


@pytest.mark.parametrize(
    ("tensor", "box", "swizzle", "message"),
    [
        (torch.zeros(4, 6), (4, 4), 0, "multiples of 16 bytes"),
        (torch.zeros(4, 8), (4,), 0, "as many"),
        (torch.zeros(4, 8), (4, 512), 0, "1 to 256"),
        (torch.zeros(4, 64), (4, 16), 128, "128 bytes"),
        (torch.zeros(4, 8)[:, 1:5], (4, 4), 0, "not a multiple of 16"),
        (torch.zeros(4, 8, dtype=torch.complex64), (4, 4), 0, "no elements of"),
    ],
)
def test_a_map_that_the_hardware_does_not_have_is_an_error(
    tensor: torch.Tensor, box: tuple[int, ...], swizzle: int, message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        ow.tensor_map(tensor, box, swizzle=swizzle)


def box_of_three_dimensions(
    swizzle: int, device: str = "cpu", *, outside: int = 4
) -> tuple[torch.Tensor, torch.Tensor]:
    """The copied box, which begins so many columns outside of the tensor, and what it should be."""
    columns = (swizzle or 64) // 4
    text = """
    #include <cuda.h>
    #include <stdint.h>
    __global__ void k(const __grid_constant__ CUtensorMap map, float* y, int count, int first) {
      extern __shared__ __align__(1024) float tile[];
      __shared__ uint64_t bar;
      unsigned at = (unsigned)__cvta_generic_to_shared(&bar), to = (unsigned)__cvta_generic_to_shared(tile), done = 0;
      if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at));
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(at), "r"(count * 4));
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%2, %3, %4}], [%5];" :: "r"(to), "l"(&map), "r"(first), "r"(1), "r"(2), "r"(at));
      }
      __syncthreads();
      while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(at));
      }
      for (int i = threadIdx.x; i < count; i += blockDim.x) y[i] = tile[i];
    }
    """
    x = (torch.arange(5 * 7 * 64.0).view(5, 7, 64) + 1).to(device)
    box = (2, 4, columns)
    count = 8 * columns
    y = torch.zeros(count, device=device)
    ow.cuda_module(text)["k"][1, 32, count * 4](ow.tensor_map(x, box, swizzle=swizzle), y, count, -outside)
    wanted = torch.nn.functional.pad(x, (outside, 0))[2:4, 1:5, :columns].flatten()
    # PTX ISA, "Swizzling modes": bits 4 to 6 of an address with bits 7 to 9.
    place = torch.arange(count, device=device) * 4
    place ^= (place >> 3) & (swizzle - 16 if swizzle else 0)
    return y[place // 4], wanted


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_a_box_of_three_dimensions_in_each_pattern(swizzle: int) -> None:
    y, wanted = box_of_three_dimensions(swizzle)
    assert torch.equal(y, wanted)


@pytest.mark.parametrize("outside", [-1, 2, -62])
def test_a_box_that_begins_within_16_bytes_is_an_illegal_instruction(outside: int) -> None:
    with pytest.raises(SimulatorError, match=r"no multiple of 16 bytes.*\n.*bulk\.tensor\.3d"):
        box_of_three_dimensions(0, outside=outside)


STORED = """
#include <stdint.h>
__global__ void k(float* y) {
  __shared__ alignas(16) float tile[256];
  for (int i = threadIdx.x; i < 256; i += 32) tile[i] = i;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(y), "r"((unsigned)__cvta_generic_to_shared(tile)), "n"(1024) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    y[0] += 1;
  }
}
"""


def test_a_bulk_copy_to_global_memory_is_there_after_its_wait() -> None:
    y = torch.zeros(256)
    ow.cuda_module(STORED)["k"][1, 32](y)
    assert torch.equal(y, torch.cat([torch.ones(1), torch.arange(1.0, 256)]))


@pytest.mark.parametrize("wait", quick(["", "cp.async.bulk.wait_group.read 0;", "cp.async.bulk.wait_group 1;"], 0, 1))
def test_without_its_wait_it_is_a_race(wait: str) -> None:
    with pytest.raises(SimulatorError, match=r"race: .* races with a write") as caught:
        ow.cuda_module(STORED.replace("cp.async.bulk.wait_group 0;", wait))["k"][1, 32](torch.zeros(256))
    assert "y[0] += 1;" in str(caught.value)


@needs_nvrtc
def test_nvrtc_takes_it() -> None:
    assert ow.cuda_module(STORED).compile("sm_90a").entries


def test_a_map_of_another_number_of_dimensions_is_a_finding() -> None:
    x = torch.zeros(2, 16, 64, dtype=torch.float16)
    flat, deep = ow.tensor_map(x[0], (16, 64), swizzle=128), ow.tensor_map(x, (1, 16, 64), swizzle=128)
    with pytest.raises(SimulatorError, match="trap: the tensor map has another number of dimensions than the copy"):
        ow.cuda_module(BOXES)["boxes"][1, 128](deep, flat)
