"""A kernel of CUTLASS 3 for Hopper, with NVIDIA's headers: what it computes, and the faults found in it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

import kernelsim
import opwright as ow
from kernelsim.text.library_headers import cutlass_folder
from opwright.backends.cuda.module import CudaModule
from opwright.backends.cuda.nvrtc import available
from opwright.errors import SimulatorError
from opwright.results import Refused

SOURCE = Path(__file__).parent / "kernels" / "cutlass_hopper.cu"
INSTANCES = ["describe<Gemm>", "product<Gemm>"]
pytestmark = [
    pytest.mark.compiler,
    pytest.mark.slow,  # g++ takes half a minute for each kernel
    pytest.mark.skipif(cutlass_folder() is None, reason="CUTLASS's headers are not installed"),
]


@pytest.fixture(scope="module")
def kernels() -> CudaModule:
    return ow.cuda_module(SOURCE, instances=INSTANCES)


def product(kernels: CudaModule, m: int, n: int, k: int, more: int = 0, device: str = "cpu") -> tuple[Any, Any]:
    """A product and what it should be. Tiles are 128 x 128 x 64; a cluster of two blocks shares those of b."""
    a, b = torch.randint(-3, 4, (m, k)).half(), torch.randint(-3, 4, (n, k)).half()
    expected = a.float() @ b.float().T
    a, b, c = a.to(device), b.to(device), torch.zeros(m, n, device=device)
    made = torch.zeros(4096, dtype=torch.uint8, device=device)
    sizes = torch.zeros(3, dtype=torch.int32, device=device)
    a_map, b_map = ow.tensor_map(a[None], (1, 128, 64), swizzle=128), ow.tensor_map(b[None], (1, 64, 64), swizzle=128)
    kernels[INSTANCES[0]][1, 1](made, a_map, b_map, c, m, n, k, more, sizes)
    size, shared, threads = sizes.tolist()
    params = (ctypes.c_uint8 * size)(*made[:size].tolist())
    grid = (ow.cdiv(ow.cdiv(m, 128), 2) * 2, ow.cdiv(n, 128))
    with kernelsim.options(reachable=[a, b, c], time_limit_s=60):
        kernels[INSTANCES[1]][grid, threads, shared, (2, 1, 1)](Params(params))
    return c.cpu(), expected


class Params(ctypes.Structure):
    """The parameters of the kernel, as bytes."""

    _fields_ = (("bytes", ctypes.c_uint8 * 640),)


# The last has fewer tiles along k than there are stages.
@pytest.mark.parametrize("size", [(256, 128, 320), (200, 120, 104), (72, 264, 8)])
def test_what_it_computes(kernels, size):
    c, expected = product(kernels, *size)
    assert torch.equal(c, expected)


@pytest.mark.parametrize(("more", "bytes_missing"), [(16, 16), (-16, -16)])
def test_a_wrong_number_of_expected_bytes(kernels, more, bytes_missing):
    """No phase ends: bytes are missing, or there are more than were expected."""
    with pytest.raises(SimulatorError) as error:
        product(kernels, 256, 128, 320, more)
    messages = [finding.message for finding in error.value.findings if finding.kind == "barrier"]
    assert any(f"and {bytes_missing} bytes are missing" in message for message in messages)


@pytest.mark.exhaustive
def test_a_missing_wait(tmp_path):
    part = "cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp"
    text = (cutlass_folder() / part).read_text()
    wait = "pipeline.consumer_wait(smem_pipe_read, barrier_token);"
    assert wait in text
    (tmp_path / part).parent.mkdir(parents=True)
    (tmp_path / part).write_text(text.replace(wait, ""))
    wrong = ow.cuda_module(SOURCE, instances=INSTANCES, options=[f"-I{tmp_path}"])
    with pytest.raises(SimulatorError) as error:
        product(wrong, 256, 128, 320)
    assert {"uninitialised", "race"} & {finding.kind for finding in error.value.findings}


@pytest.mark.exhaustive
@pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")
def test_nvrtc_takes_it_too():
    made = ow.cuda_module(SOURCE, instances=INSTANCES).compile("sm_90a")
    assert {entry.name for entry in made.entries} == set(INSTANCES)


@pytest.mark.gpu
def test_it_computes_the_same_on_a_gpu(kernels):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("it has no wgmma")
    c, expected = product(kernels, 200, 120, 104, device="cuda")
    assert torch.equal(c, expected)
