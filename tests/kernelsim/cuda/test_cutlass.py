"""Kernels that include CuTe and CUTLASS, from the pip package: what they compute, and the faults found in them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import opwright as ow
from kernelsim.text.library_headers import cutlass_folder
from opwright.backends.cuda.module import CudaModule
from opwright.backends.cuda.nvrtc import available
from opwright.errors import KernelRefusedError, SimulatorError
from opwright.results import Refused
from tests.sampled import sampled

KERNELS = Path(__file__).parent / "kernels" / "cute.cu"
pytestmark = [
    pytest.mark.compiler,
    pytest.mark.slow,  # g++ takes many seconds for each kernel
    pytest.mark.skipif(cutlass_folder() is None, reason="CUTLASS's headers are not installed"),
]


@pytest.fixture(scope="module")
def kernels() -> CudaModule:
    return ow.cuda_module(KERNELS)


def factors(rows: int, columns: int, inner: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    a, b = torch.randint(-4, 5, (rows, inner)), torch.randint(-4, 5, (columns, inner))
    return a.to(dtype), b.to(dtype), torch.zeros(rows, columns), (a @ b.T).float()  # sums of integers are exact


@pytest.mark.exhaustive
def test_tiles_and_partitions(kernels):
    x, y = torch.randn(64, 96), torch.zeros(64, 96)
    kernels["add"][(2, 3), 256](x, y, 64, 96)
    assert torch.equal(y, x + 1)


def test_a_tile_that_is_larger_than_what_is_left(kernels):
    x = torch.randn(63, 96)
    with pytest.raises(SimulatorError, match=r"cute.cu:18: out-of-bounds: reads 4 bytes just past the end"):
        kernels["add"][(2, 3), 256](x, torch.zeros(63, 96), 63, 96)


@pytest.mark.exhaustive
def test_a_product_in_floats(kernels):
    a, b, c, expected = factors(64, 32, 24, torch.float32)
    kernels["product<true>"][(2, 1), 64](a, b, c, 64, 32, 24)
    assert torch.equal(c, expected)


def test_a_product_on_tensor_cores(kernels):
    a, b, c, expected = factors(64, 32, 96, torch.float16)
    kernels["tensor_core_product<true>"][(2, 1), 128](a, b, c, 64, 32, 96)
    assert torch.equal(c, expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "threads", "dtype"), [("product", 64, torch.float32),
                                                        ("tensor_core_product", 128, torch.float16)])  # fmt: skip
def test_tiles_that_are_read_without_a_barrier_after_their_copy(kernels, name, threads, dtype):
    a, b, c, _ = factors(32, 32, 32, dtype)
    with pytest.raises(SimulatorError) as error:
        kernels[f"{name}<false>"][1, threads](a, b, c, 32, 32, 32)
    assert "race" in {finding.kind for finding in error.value.findings}


def test_numbers_and_arrays_of_cutlass(kernels):
    x, y = torch.randn(64), torch.zeros(64, dtype=torch.float16)
    kernels["halved"][1, 16](x, y, 64)
    assert torch.equal(y, (x / 2).half())


def test_an_instruction_that_is_not_simulated_is_refused_where_a_kernel_uses_it(kernels):
    """The header has many such functions, which the other kernels do not use."""
    with pytest.raises(KernelRefusedError, match=r"mma_sm80.hpp:\d+: inline PTX mma.sync.aligned.m8n8k4.row.col.f64"):
        kernels["doubles"][1, 32](torch.zeros(32, dtype=torch.float64))


@pytest.mark.exhaustive
@pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")
def test_nvrtc_takes_them_too():
    made = ow.cuda_module(KERNELS, instances=["product<true>"]).compile("sm_90")  # CuTe has a function of that name
    assert {entry.name for entry in made.entries} == {"add", "halved", "doubles", "product<true>"}


@pytest.mark.gpu
def test_they_compute_the_same_on_a_gpu(kernels):
    x, y = torch.randn(64, 96, device="cuda"), torch.zeros(64, 96, device="cuda")
    kernels["add"][(2, 3), 256](x, y, 64, 96)
    assert torch.equal(y, x + 1)
    halves = torch.zeros(64, 96, device="cuda", dtype=torch.float16)
    kernels["halved"][1, 16](x, halves, 64)
    assert torch.equal(halves.flatten()[:64], (x / 2).half().flatten()[:64])
    a, b, c, expected = (each.cuda() for each in factors(64, 32, 24, torch.float32))
    kernels["product<true>"][(2, 1), 64](a, b, c, 64, 32, 24)
    assert torch.equal(c, expected)
    a, b, c, expected = (each.cuda() for each in factors(64, 32, 96, torch.float16))
    kernels["tensor_core_product<true>"][(2, 1), 128](a, b, c, 64, 32, 96)
    assert torch.equal(c, expected)


FLOATS, STAGES = "product<InFloats, float>", "product<InStages, float>"
HALVES = "product<OnTensorCores, cutlass::half_t>"


@pytest.fixture(scope="module")
def gemms() -> CudaModule:
    return ow.cuda_module(KERNELS.parent / "cutlass_gemm.cu", instances=[FLOATS, STAGES, HALVES])


@pytest.mark.exhaustive
def test_a_kernel_of_cutlass_2_in_floats(gemms):
    a, b, c, expected = factors(72, 90, 13, torch.float32)
    gemms[FLOATS][(2, 2), 128, 32 << 10](a, b, c, 72, 90, 13)
    assert torch.equal(c, expected)


@pytest.mark.exhaustive
def test_a_kernel_of_cutlass_2_with_too_little_shared_memory(gemms):
    a, b, c, _ = factors(64, 64, 16, torch.float32)
    with pytest.raises(SimulatorError, match=r"out-of-bounds: .*dynamic shared memory \(1024 bytes\)"):
        gemms[FLOATS][1, 128, 1024](a, b, c, 64, 64, 16)


@pytest.mark.exhaustive
def test_a_kernel_of_cutlass_2_on_tensor_cores(gemms):
    a, b, c, expected = factors(64, 64, 128, torch.float16)
    gemms[HALVES][1, 128, 64 << 10](a, b, c, 64, 64, 128)
    assert torch.equal(c, expected)


# The tiles are 64 x 64, and 8 or 32 along k; there are 4 or 3 stages.
SIZES = [(64, 64, 32), (60, 64, 128), (64, 60, 128), (64, 64, 120), (40, 24, 40), (72, 88, 136), (8, 8, 8)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", sampled(SIZES, 3, [(72, 88, 136)]))
@pytest.mark.parametrize("name", [STAGES, HALVES])
def test_a_kernel_in_stages_of_sizes_that_do_not_fill_the_tiles(gemms, name, size):
    """It reads rows and stages that it did not copy, and throws away what it computes of them."""
    m, n, k = size
    a, b, c, expected = factors(m, n, k, torch.float16 if name == HALVES else torch.float32)
    gemms[name][(ow.cdiv(m, 64), ow.cdiv(n, 64)), 128, 64 << 10](a, b, c, m, n, k)
    assert torch.equal(c, expected)


WAITS = "cutlass::arch::cp_async_wait<Base::kStages - 2>();"
ROWS = "iterator_A.clear_mask(gemm_k_iterations == 0);"


@pytest.mark.parametrize(("wrong", "by"), [(WAITS, ""), (ROWS, "iterator_A.clear_mask();")])
def test_a_kernel_in_stages_with_a_fault(tmp_path, wrong, by):
    """A header without a wait, and one that copies no tile of a: faults beside the rows that may be unwritten."""
    part = "cutlass/gemm/threadblock/mma_multistage.h"
    text = (cutlass_folder() / part).read_text()
    assert wrong in text
    (tmp_path / part).parent.mkdir(parents=True)
    (tmp_path / part).write_text(text.replace(wrong, by))
    kernels = ow.cuda_module(KERNELS.parent / "cutlass_gemm.cu", instances=[HALVES], options=[f"-I{tmp_path}"])
    for m, n, k in ((64, 64, 128), (40, 24, 136)):
        a, b, c, _ = factors(m, n, k, torch.float16)
        with pytest.raises(SimulatorError) as error:
            kernels[HALVES][1, 128, 64 << 10](a, b, c, m, n, k)
        assert ("uninitialised", "memory_sm75.h") in {(f.kind, Path(f.file).name) for f in error.value.findings}


WHOLE_FILE = """
#include <torch/extension.h>
#include <c10/cuda/CUDAGuard.h>
#include <cublas_v2.h>
#include <cute/tensor.hpp>
#include "cutlass/cluster_launch.hpp"
#include "cutlass/util/GPU_Clock.hpp"

template <class Spec>
__global__ void scaled(float* x, int n) {
  using namespace cute;
  Tensor all = make_tensor(make_gmem_ptr(x), make_shape(n));
  Tensor mine = local_tile(all, make_shape(Int<Spec::kTile>{}), make_coord(blockIdx.x));
  mine(threadIdx.x) *= Spec::kFactor;
}

namespace spec {
template <int Factor>
struct Scaling {
  static constexpr int kTile = 32, kFactor = Factor;
};
}  // namespace spec

torch::Tensor run(torch::Tensor x) {
  at::cuda::CUDAGuard guard(x.device());
  GPU_Clock clock;
  scaled<spec::Scaling<3>><<<x.numel() / 32, 32>>>(x.data_ptr<float>(), x.numel());
  return x;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory) -> CudaModule:
    file = tmp_path_factory.mktemp("cute") / "scaled.cu"
    file.write_text(WHOLE_FILE)
    return ow.cuda_module(file, instances=["scaled<spec::Scaling<3>>"])


def test_a_file_with_host_code(whole_file):
    x = torch.arange(64.0)
    whole_file["scaled<spec::Scaling<3>>"][2, 32](x, 64)
    assert torch.equal(x, 3 * torch.arange(64.0))


@pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")
def test_nvrtc_takes_a_file_with_host_code_too(whole_file):
    assert [entry.name for entry in whole_file.compile("sm_90").entries] == ["scaled<spec::Scaling<3>>"]
