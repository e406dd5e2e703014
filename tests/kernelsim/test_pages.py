"""The examples of the pages about kernelsim run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import REPOSITORY

pytestmark = pytest.mark.compiler

SAXPY = """\
__global__ void saxpy(const float* x, const float* y, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i] + y[i];
}
"""
N = 1000


@pytest.fixture
def scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the pages use; the working folder has their source."""
    (tmp_path / "saxpy.cu").write_text(SAXPY)
    monkeypatch.chdir(tmp_path)
    return {"n": N, "a": 2.0, "x": torch.randn(N), "y": torch.randn(N), "out": torch.zeros(N)}


def run_blocks(page: str, count: int, scope: dict[str, Any]) -> None:
    """Run the first blocks of Python of a page."""
    text = (REPOSITORY / "docs" / page).read_text()
    for block in re.findall(r"(?s)```python\n(.*?)```", text)[:count]:
        exec(compile(block, page, "exec"), scope)


def test_the_page_on_cuda(scope: dict[str, Any]) -> None:
    run_blocks("simulator.md", 2, scope)
    torch.testing.assert_close(scope["out"], 2 * scope["x"] + scope["y"])


@pytest.mark.triton
def test_the_page_on_triton(scope: dict[str, Any]) -> None:
    scope |= {"kernel": pytest.importorskip("tests.kernelsim.triton.kernels").copy, "grid": (8,)}
    run_blocks("triton-on-a-cpu.md", 2, scope)
    assert torch.equal(scope["out"][: N - 1], scope["x"][1:])


@pytest.mark.triton
def test_the_page_on_kernelsim(scope: dict[str, Any]) -> None:
    kernel = pytest.importorskip("tests.kernelsim.triton.kernels").copy
    scope |= {"kernel": kernel, "launcher": lambda x, out: kernel[(8,)](x, out, N, BLOCK=128)}
    run_blocks("kernelsim.md", 3, scope)
    assert scope["report"]
