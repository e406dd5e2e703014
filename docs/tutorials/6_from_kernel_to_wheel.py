"""
From kernel to wheel
====================

After this tutorial you can turn a kernel into a wheel that other people install. You define an operator, attach two
kernels, check them, correct them, time them, and build the package.

PyTorch's `C++ extension tutorial <https://docs.pytorch.org/tutorials/advanced/cpp_custom_ops.html>`_ ends with a
``setup.py`` on your machine. This page goes further in three points:

- A check compares each kernel with a reference before you ship it.
- The wheel needs neither a compiler nor opwright where it is installed.
- Calls that no kernel in the wheel can handle run the reference.

It needs a C++ compiler, and in a clone of the repository ``pip install -e '.[triton,package]'``. Its files are in a
temporary folder. Two functions stand for your editor and your terminal.
"""

# sphinx_gallery_thumbnail_path = 'pictures/bench.svg'

import subprocess
import tempfile
from pathlib import Path

temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)


def write(name, text):
    """Write a file of the folder."""
    (folder / name).write_text(text)


def run(command, code=0):
    """Run a command in the folder, and print its output. Its exit code must be this one."""
    print(f"$ {command}")
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == code, done.stdout + done.stderr


# %%
# Define the operator
# -------------------
# RMSNorm divides each row by the root of its mean square, and multiplies it by a weight. The reference is ordinary
# PyTorch. Its annotations say the dtypes, and that the columns of ``x`` are the length of ``weight``.

write(
    "norms.py",
    '''
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow


@ow.op("tutorial::rms_norm")
def rms_norm(x: Float32[Tensor, "m n"], weight: Float32[Tensor, "n"]) -> Float32[Tensor, "m n"]:
    """Each row of x over the root of its mean square, times the weight."""
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6) * weight


rms_norm.triton("rms_triton.py")
rms_norm.cpp("rms.cpp")
''',
)

# %%
# The two last lines attach kernels: one in Triton for GPUs, and one in C++ for CPUs. The Triton file has a kernel and
# a launcher. One program computes one row.

first_triton = """
import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x, weight, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    j = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + j, mask=j < columns, other=0.0)
    factor = tl.rsqrt(tl.sum(values * values) / columns + 1e-6)
    scale = tl.load(weight + j)
    tl.store(out + row * columns + j, values * factor * scale, mask=j < columns)


def rms_norm(x, weight):
    x, weight = x.contiguous(), weight.contiguous()
    out = torch.empty_like(x)
    rows, columns = x.shape
    if x.numel() > 0:  # a grid may not be empty
        block = triton.next_power_of_2(columns)
        rms_norm_kernel[(rows,)](x, weight, out, columns, BLOCK=block)
    return out
"""
write("rms_triton.py", first_triton)

# %%
# The C++ file has a function of tensors. It uses torch's stable ABI, so one binary runs on several versions of torch.

first_cpp = """
#include <cmath>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

Tensor rms_norm(const Tensor& x, const Tensor& weight) {
  const int64_t rows = x.size(0), columns = x.size(1);
  Tensor out = torch::stable::empty_like(x);
  const float* from = x.const_data_ptr<float>();
  const float* scale = weight.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  torch::stable::parallel_for(0, rows, 16, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* row = from + i * columns;
      float squares = 0;
      for (int64_t j = 0; j < columns; ++j) squares += row[j] * row[j];
      const float factor = 1 / std::sqrt(squares / columns + 1e-6f);
      for (int64_t j = 0; j < columns; ++j) to[i * columns + j] = row[j] * factor * scale[j];
    }
  });
  return out;
}
"""
write("rms.cpp", first_cpp)

# %%
# Check it
# --------
# Both kernels look right, and both are wrong. ``--level smoke`` runs three cases of each:

run("opwright check norms.py --level smoke", code=1)

# %%
# The check has found two different faults:
#
# - The Triton kernel loads past the end of ``weight``. The simulator names the line. On a GPU this load usually
#   succeeds, and no result shows it.
# - The C++ kernel is wrong for ``layout=sliced``. It reads the elements as if they were next to each other in memory.
#
# Correct it
# ----------
# The load of ``weight`` gets the mask of the other load. The C++ function copies tensors that are not contiguous.

write("rms_triton.py", first_triton.replace("tl.load(weight + j)", "tl.load(weight + j, mask=j < columns, other=0.0)"))

first, second = (
    "Tensor rms_norm(const Tensor& x, const Tensor& weight) {",
    """Tensor rms_norm(const Tensor& any_x, const Tensor& any_weight) {
  const Tensor x = torch::stable::contiguous(any_x);
  const Tensor weight = torch::stable::contiguous(any_weight);""",
)
write("rms.cpp", first_cpp.replace(first, second))

# %%
# The default level runs more than a hundred cases of each kernel: sizes, layouts, special values, gradients and
# ``torch.compile``.

run("opwright check norms.py")

# %%
# You wrote no gradient. opwright derives it from the reference, so the check of gradients has run as well.
#
# Time it
# -------
# ``opwright bench`` compares the kernels with the reference. ``±`` is the spread. The machine that builds this page has
# two cores and other work to do; run it on yours. Without ``--no-limits``, the table also says how near each time is to
# what the memory and the processor allow. That takes half a minute the first time.

run("opwright bench norms.py --quick --no-limits --direction forward --size m=1024 --size n=1024")

# %%
# Package it
# ----------
# ``opwright package`` compiles the C++ kernel, copies the Triton kernel, and writes a wheel. A missing compiler would
# be an error here and not on the machine of your user.

run("opwright package norms.py --name fast_norms --out build --wheel --license MIT")

# %%
# Install the wheel into a fresh folder, as your user would. ``--no-deps`` leaves out torch, which is here already.

wheel = next((folder / "build" / "dist").glob("*.whl"))
run(f"pip install --quiet --no-deps --target fresh build/dist/{wheel.name}")

# %%
# Call it without opwright. The first line makes any import of opwright an error.

write(
    "fresh/user.py",
    """
import sys

sys.modules["opwright"] = None

import fast_norms
import torch

x, weight = torch.randn(3, 5, requires_grad=True), torch.ones(5)
y = fast_norms.rms_norm(x, weight)
print("mean squares:", [round(v, 4) for v in y.square().mean(1).tolist()])

y.sum().backward()
print("gradient:    ", tuple(x.grad.shape))

compiled = torch.compile(fast_norms.rms_norm, fullgraph=True, backend="aot_eager")
print("compiled:    ", torch.allclose(compiled(x, weight), y))

try:
    fast_norms.rms_norm(x, torch.ones(4))
except Exception as error:
    print("wrong call:  ", error)
""",
)
run("python fresh/user.py")

# %%
# The package checks arguments, has the gradient, and takes part in ``torch.compile``. Wheels that were built with torch
# 2.11, 2.13 and 2.15 ran with each of these
# (:download:`record <../../benchmarks/results/2026-11-26-cpu-wheel-matrix.json>`).
#
# Next
# ----
# - :doc:`/packaging` lists what a package contains, and every option.
# - :doc:`/guides/ci` makes a wrong kernel fail a pull request.
# - :doc:`/guides/load-in-cpp` calls the packaged operator from a C++ program without Python.
