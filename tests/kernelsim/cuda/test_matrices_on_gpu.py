"""Tensor cores, inline PTX and asynchronous copies: the simulator beside a GPU, from the same inputs."""

from __future__ import annotations

import pytest
import torch

import opwright as ow
from tests.kernelsim.cuda.test_inline_ptx import COPIES as CP_ASYNC
from tests.kernelsim.cuda.test_inline_ptx import MMA, SCALARS
from tests.kernelsim.cuda.test_matrices import COPIES, WMMA

pytestmark = [pytest.mark.gpu, pytest.mark.compiler]


def both(text: str, kernel: str, threads: int, *arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
    """The last tensor after a launch here and on the GPU."""
    results = []
    for device in ("cpu", "cuda"):
        passed = [a.to(device, copy=True) if isinstance(a, torch.Tensor) else a for a in arguments]
        ow.cuda_module(text)[kernel][1, threads](*passed)
        results.append([a for a in passed if isinstance(a, torch.Tensor)][-1].cpu())
    return results[0], results[1]


WMMA_CASES = [
    ("half, half", (16, 16, 16), torch.float16),
    ("nv_bfloat16, nv_bfloat16", (32, 8, 16), torch.bfloat16),
    ("wmma::precision::tf32, float", (16, 16, 8), torch.float32),
]


@pytest.mark.parametrize(("types", "shape", "dtype"), WMMA_CASES)
@pytest.mark.parametrize("exact", [True, False])
def test_wmma(types: str, shape: tuple[int, int, int], dtype: torch.dtype, exact: bool) -> None:
    m, n, k = shape
    draw = (lambda *s: torch.randint(-9, 9, s).float() / 8) if exact else torch.randn
    a, b = draw(m, 32).to(dtype), draw(n, 32).to(dtype)
    here, there = both(WMMA, f"product<{types}, {m}, {n}, {k}>", 32, a, b, torch.zeros(m, n), n, 32)
    if exact:  # every sum is
        assert torch.equal(here, there)
    torch.testing.assert_close(here, there, rtol=1e-3 if dtype is torch.float32 else 1e-5, atol=1e-3)


@pytest.mark.parametrize(
    ("cpp", "kind", "dtype"), [("half", "f16", torch.half), ("nv_bfloat16", "bf16", torch.bfloat16)]
)
@pytest.mark.parametrize("exact", [True, False])
def test_mma_and_ldmatrix(cpp: str, kind: str, dtype: torch.dtype, exact: bool) -> None:
    draw = (lambda *s: torch.randint(-9, 9, s).float() / 8) if exact else torch.randn
    a, b = draw(16, 16).to(dtype), draw(16, 8).to(dtype)
    here, there = both(MMA.replace("KIND", kind), f"product<{cpp}>", 32, a, b, torch.zeros(16, 8))
    if exact:
        assert torch.equal(here, there)
    torch.testing.assert_close(here, there, rtol=1e-5, atol=1e-5)


def test_instructions() -> None:
    known = {name: case for name, case in SCALARS.items() if name != "names"}  # NVRTC has no named operands
    bodies = "\n".join(
        f"__device__ unsigned f{n}(unsigned* x) {{ unsigned a = 0x12345678, b = 0x0f0f0f0f, out = 0; float f = 2.5f;"
        f" {statement} return out; }}"
        for n, (statement, _) in enumerate(known.values())
    )
    # Each has memory of its own, which nothing has written in this launch: "load" is not coherent.
    calls = "\n".join(f"  out[{n}] = f{n}(x + {2 * n});" for n in range(len(known)))
    text = f"{bodies}\n__global__ void k(unsigned* x, unsigned* out) {{\n{calls}\n}}\n"
    x = torch.tensor([11, 22] * len(known), dtype=torch.int32)
    out = torch.zeros(len(known), dtype=torch.int32)
    here, there = both(text, "k", 1, x, out)
    assert dict(zip(known, here.tolist(), strict=True)) == dict(zip(known, there.tolist(), strict=True))


@pytest.mark.parametrize("form", ["cp.async", *COPIES])
def test_asynchronous_copies(form: str) -> None:
    text = CP_ASYNC
    if form in COPIES:
        header, copy, wait = COPIES[form]
        text = f"""{header}
        __global__ void reversed(const float* x, float* y, int n) {{
          __shared__ __align__(16) float tile[256];
          int i = threadIdx.x * 4;
          {copy}
          {wait}
          for (int k = 0; k < 4; k++) y[i + k] = tile[255 - i - k];
        }}"""
    here, there = both(text, "reversed", 64, torch.arange(256.0), torch.zeros(256), 256)
    assert torch.equal(here, there)
