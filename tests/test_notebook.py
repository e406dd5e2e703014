"""The cell magic ``%%opwright``: a kernel in a cell is attached and checked."""

from __future__ import annotations

import pytest
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.errors import OpwrightError
from opwright.notebook import run_cell

DEFINITION = """
from jaxtyping import Float32
from torch import Tensor
import opwright as ow

@ow.op("cells::twice")
def twice(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return 2 * x
"""
TRITON = """
import torch, triton
import triton.language as tl

@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * FACTOR, mask=at < n)

def twice(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
    return out
"""
CPP = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
Tensor twice(Tensor x) {
  Tensor a = torch::stable::contiguous(x);
  Tensor out = torch::stable::empty_like(a);
  const float* from = static_cast<const float*>(a.data_ptr());
  float* to = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < a.numel(); ++i) to[i] = from[i] + from[i];
  return out;
}
"""


@pytest.fixture
def twice(namespace):
    @ow.op(f"{namespace}::twice")
    def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return 2 * x

    return twice


def test_a_line_that_is_wrong_is_answered_with_the_right_one(twice):
    with pytest.raises(OpwrightError, match="the operator must be one of the notebook, twice, got 'other'"):
        run_cell("cuda other", "", {"twice": twice})
    with pytest.raises(OpwrightError, match=r"must be called as .*\{cuda,cpp,triton\}.* got: .*'rust'"):
        run_cell("rust twice", "", {"twice": twice})
    with pytest.raises(OpwrightError, match="got: the following arguments are required: language, operator"):
        run_cell("", "", {"twice": twice})


@pytest.mark.triton
@pytest.mark.slow
def test_a_triton_cell_is_attached_and_checked(twice):
    report = run_cell("triton twice --check values", TRITON.replace("FACTOR", "2.0"), {"twice": twice})
    assert report.passed
    assert "triton" in twice.kernels
    report = run_cell("triton twice --check values --name wrong", TRITON.replace("FACTOR", "2.5"), {"twice": twice})
    assert not report.passed


@pytest.mark.compiler
@pytest.mark.slow
def test_a_cpp_cell_is_attached_and_checked(twice):
    assert run_cell("cpp twice --check values", CPP, {"twice": twice}).passed


@pytest.mark.triton
@pytest.mark.slow
def test_a_notebook_runs(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.chdir(tmp_path)
    kernel = "%%opwright triton twice --check values" + TRITON.replace("FACTOR", "3.0")
    cells = ["%load_ext opwright", DEFINITION, kernel]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (output,) = [each for each in notebook.cells[2].outputs if each.output_type == "execute_result"]
    assert "elements differ" in output.data["text/html"]
    cells = [cells[0], "%%opwright cuda nothing\nint x;"]
    wrong = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="must be one of the notebook, which has none"):
        nbclient.NotebookClient(wrong, timeout=60, kernel_name="python3").execute()
