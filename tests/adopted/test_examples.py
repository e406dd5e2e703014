"""Kernels of other libraries on a CPU, adopted as they are: one right, one wrong. Each needs its package.

Without a GPU, numba-cuda, CuPy, cuTile and the CuTe DSL cannot run; ``docs/guides/other-libraries.md`` says why.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

BEGIN = """
import torch
from jaxtyping import Float32
from torch import Tensor
import opwright as ow

def twice(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return x + x
"""
END = """
right = ow.adopt(right_twice, reference=twice, devices=["cpu"])
wrong = ow.adopt(wrong_twice, reference=twice, devices=["cpu"])
"""

PALLAS = """
import jax
from jax.experimental import pallas as pl

def made(factor):
    def kernel(x, out):
        out[...] = factor * x[...]

    @jax.jit
    def launch(x):
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)

    def call(x):
        if x.numel() == 0:
            return torch.empty_like(x)
        return torch.from_dlpack(launch(jax.dlpack.from_dlpack(x.detach().contiguous()))).clone()

    return call

def right_twice(x): return made(2.0)(x)
def wrong_twice(x): return made(2.5)(x)
"""

WARP = """
import warp as wp
wp.config.quiet = True
wp.init()

@wp.kernel
def kernel(x: wp.array(dtype=wp.float32), factor: float, out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = factor * x[i]

def launch(x, factor):
    x = x.detach().contiguous()
    out = torch.empty_like(x)
    if x.numel():
        arrays = [wp.from_torch(x), factor], [wp.from_torch(out)]
        wp.launch(kernel, dim=x.numel(), inputs=arrays[0], outputs=arrays[1], device="cpu")
    return out

def right_twice(x): return launch(x, 2.0)
def wrong_twice(x): return launch(x, 2.5)
"""

TVM_FFI = """
import tvm_ffi.cpp

module = tvm_ffi.cpp.load_inline(name="adopted_scale", functions=["scale"], cpp_sources=r'''
void scale(tvm::ffi::TensorView x, double factor, tvm::ffi::TensorView out) {
  const float* from = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < x.size(0); ++i) to[i] = factor * from[i];
}''')

def launch(x, factor):
    x = x.detach().contiguous()
    out = torch.empty_like(x)
    module.scale(x, factor, out)
    return out

def right_twice(x): return launch(x, 2.0)
def wrong_twice(x): return launch(x, 2.5)
"""

HELION = """
import helion
import helion.language as hl

@helion.kernel(config=helion.Config(block_sizes=[32]))
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = factor * x[tile]
    return out

def right_twice(x): return scale(x.detach().contiguous(), 2.0)
def wrong_twice(x): return scale(x.detach().contiguous(), 2.5)
"""


@pytest.mark.parametrize(
    ("package", "text"),
    [("jax", PALLAS), ("warp", WARP), ("tvm_ffi", TVM_FFI), ("helion", HELION)],
    ids=["pallas", "warp", "tvm-ffi", "helion"],
)
def test_a_kernel_of_another_library_is_checked(package, text, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    (tmp_path / "ops.py").write_text(BEGIN + text + END)
    done = subprocess.run(
        [sys.executable, "-m", "opwright", "check", "ops.py", "--check", "values", "--check", "inputs unchanged"],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "HELION_INTERPRET": "1"},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "adopted::wrong_twice adopted on cpu: values" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
