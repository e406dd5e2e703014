"""<opwright/tensor.h>: it allocates the same tensors as torch, and a changed header builds kernels anew."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

import opwright as ow
from opwright.backends import get_backend
from opwright.backends.build_tools import BuildTools
from opwright.backends.native.abi import INCLUDE
from opwright.cache import ArtifactCache
from opwright.machine import this_machine
from tests import REPOSITORY

ROOT = REPOSITORY
SOURCE = """
#include <opwright/tensor.h>
#include <cstring>
using torch::stable::Tensor;

Tensor copy(const Tensor& x) {
  const Tensor from = opwright::contiguous(x);
  Tensor out = opwright::empty_like(from);
  if (from.numel() > 0) std::memcpy(out.mutable_data_ptr(), from.const_data_ptr(), from.numel() * from.element_size());
  return out;
}

Tensor sizes(const Tensor& x) {
  Tensor out = opwright::new_empty(x, {2, 1}, torch::headeronly::ScalarType::Long);
  for (int64_t d = 0; d < 2; ++d) out.mutable_data_ptr<int64_t>()[d] = x.size(d);
  return out;
}
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "copy.cpp").write_text(SOURCE)
    return tmp_path / "copy.cpp"


@pytest.mark.slow
@pytest.mark.compiler
def test_tensors_have_the_sizes_strides_and_dtypes_that_torch_gives(source: Path, namespace: str) -> None:
    @ow.op(f"{namespace}::copy")
    def copy(x: Shaped[Tensor, "*n"]) -> Shaped[Tensor, "*n"]:
        return x.clone()

    @ow.op(f"{namespace}::sizes")
    def sizes(x: Float[Tensor, "n m"]) -> Int64[Tensor, "2 1"]:
        return torch.tensor([[x.shape[0]], [x.shape[1]]])

    kernel = copy.cpp(source, entry="copy")
    x = torch.randn(4, 6)
    for tensor in (x, x.t(), x[:, 1:4], x[:0], torch.tensor(2.5), torch.arange(3), torch.ones(2, 1, 3).transpose(0, 2),
                  x.half(), x > 0, torch.ones([1] * 20)):  # fmt: skip
        out = kernel(tensor)
        assert torch.equal(out, tensor)
        expected = torch.empty(tensor.shape, dtype=tensor.dtype)
        assert (out.shape, out.stride(), out.dtype) == (expected.shape, expected.stride(), expected.dtype)
    assert sizes.cpp(source, entry="sizes")(x).tolist() == [[4], [6]]


@pytest.mark.compiler
def test_the_header_is_part_of_what_a_kernel_is_built_from(tmp_path: Path, namespace: str) -> None:
    @ow.op(f"{namespace}::same")
    def same(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x

    text = "#include <opwright/tensor.h>\ntorch::stable::Tensor same(const torch::stable::Tensor& x) { return x; }\n"
    (tmp_path / "same.cpp").write_text(text)
    kernel = same.cpp(tmp_path / "same.cpp")
    tools = BuildTools(this_machine(), ArtifactCache(tmp_path / "cache"), print)
    artifact = get_backend("cpp").compile(kernel.spec, same.contract, tools)
    assert artifact.file is not None
    own = json.loads((artifact.file.parent / "manifest.json").read_text())["read"]["own"]
    assert str(INCLUDE / "opwright" / "tensor.h") in dict(own)


@pytest.mark.exhaustive
@pytest.mark.slow  # a benchmark in a process of its own
@pytest.mark.compiler
def test_the_benchmark_of_calls_runs() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "call_overhead.py"), "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert "op(...) in C++" in done.stdout
    assert "a CUDA launch without CUDA's part" in done.stdout
