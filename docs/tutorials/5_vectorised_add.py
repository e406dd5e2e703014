"""
Add in CUDA, from one element to 128 bits
=========================================

After this tutorial you can widen the loads of a CUDA kernel without a wrong access. You can see that the compiler uses
them, and read a benchmark of the result.

Courses on CUDA begin with an elementwise add: first one element a thread, then ``half2``, then packs of 128 bits, as
NVIDIA's text on `vectorized memory access
<https://developer.nvidia.com/blog/cuda-pro-tip-increase-performance-with-vectorized-memory-access/>`_ shows. This page
goes further in three points:

- The check runs tails, strides and addresses that a pack cannot load.
- The machine code shows the width of each load, without a GPU.
- The figures are compared with a copy of as many bytes, with cold caches, and with the noise of the machine.

It needs a C++ compiler, and in a clone of the repository ``pip install -e '.[cuda,report]'``. Its files are in a
temporary folder. Two functions stand for your editor and your terminal.
"""

import json
import subprocess
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import opwright as ow

temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)


def write(name, text):
    """Write a file of the folder."""
    (folder / name).write_text(text)


def run(command, code=0):
    """Run a command in the folder, and print its output. Its exit code must be this one."""
    print(f"$ {command}")
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
    print(done.stdout.partition("\nnot checked\n")[0])  # what could not be checked is left out here
    assert done.returncode == code, done.stdout + done.stderr


# %%
# The operator
# ------------
# One template is the kernel for all widths. A thread adds ``WIDTH`` elements, which it loads as one ``Pack``.

first_cuda = """
#include <cuda_fp16.h>

template <class T, int WIDTH>
struct alignas(sizeof(T) * WIDTH) Pack {
  T value[WIDTH];
};

template <class T, int WIDTH>
__global__ void add(const T* x, const T* y, T* out, long long n) {
  using Packed = Pack<T, WIDTH>;
  const long long i = WIDTH * (blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x);
  if (i < n) {
    const Packed a = *reinterpret_cast<const Packed*>(x + i);
    const Packed b = *reinterpret_cast<const Packed*>(y + i);
    Packed sum;
    for (int e = 0; e < WIDTH; ++e) sum.value[e] = a.value[e] + b.value[e];
    *reinterpret_cast<Packed*>(out + i) = sum;
  }
}
"""
write("add.cu", first_cuda)

# %%
# The operator has five kernels: two widths of float32 and three of float16. Sixteen bytes are the most that a thread
# loads at once.

first_python = """
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow


@ow.op("tutorial::add")
def add(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return x + y


kernels = ow.cuda_module("add.cu")


def attach(name, cpp_type, dtype, width):
    kernel = kernels[f"add<{cpp_type}, {width}>"]

    @add.cuda(name=name, dtypes=[dtype])
    def launch(x, y):
        x, y = x.contiguous(), y.contiguous()
        out, n = torch.empty_like(x), x.numel()
        kernel[ow.cdiv(n, 256 * width), 256](x, y, out, n)
        return out


attach("f16x8", "__half", torch.float16, 8)
attach("f16x2", "__half", torch.float16, 2)
attach("f16", "__half", torch.float16, 1)
attach("f32x4", "float", torch.float32, 4)
attach("f32", "float", torch.float32, 1)
"""
write("add.py", first_python)
run("opwright check add.py --level smoke --check values", code=1)

# %%
# The kernels of one element are right. The others read past the end, because ``i < n`` says nothing about the last
# element of the pack. Sizes that are powers of two, as in most benchmarks, do not show it. The last thread needs a
# loop. ``#pragma unroll 1`` keeps the compiler from writing it out, because it has few steps.

with_tail = first_cuda.replace("if (i < n) {", "if (i + WIDTH <= n) {").replace(
    "(out + i) = sum;\n  }",
    "(out + i) = sum;\n  } else {\n#pragma unroll 1\n    for (long long j = i; j < n; ++j) out[j] = x[j] + y[j];\n  }",
)
write("add.cu", with_tail)
run("opwright check add.py --kernel f16x8 --kernel f16 --check values", code=1)

# %%
# The sizes are right now, and another fault is left. A pack of 16 bytes must be at an address that is a multiple of 16.
# A tensor such as ``x[1:]`` begins elsewhere. A GPU then stops with *misaligned address*.
#
# ``when`` says for which arguments a kernel is meant. Other calls run the next kernel of their dtype: the order of
# ``attach`` is the order of preference.

write(
    "add.py",
    first_python.replace(
        "    @add.cuda(name=name, dtypes=[dtype])",
        """    def is_aligned(x, y):
        return x.data_ptr() % (width * dtype.itemsize) == 0 and y.data_ptr() % (width * dtype.itemsize) == 0

    @add.cuda(name=name, dtypes=[dtype], when=is_aligned)""",
    ),
)
run("opwright check add.py --check values --check memory --check gradients")

# %%
# Look at the code
# ----------------
# Does the compiler load packs at once? The machine code for an H100 tells. NVRTC makes it here, without a GPU.
# ``LDG`` loads from global memory, and ``STG`` stores.

run(
    "opwright show add.py --what sass --arch sm_90 --kernel f16x8 --kernel f16x2 --kernel f16 "
    "| grep -E 'tutorial|LDG|STG'"
)

# %%
# The first accesses of each listing are the pack: 128, 32 and 16 bits. The others are the loop for the last elements,
# which one thread runs.
#
# Time it
# -------
# Times of a GPU cannot be measured here. They are in a record of the repository
# (:download:`record <../../benchmarks/results/2026-11-21-h200-cuda.json>`): nine kernels of the same kind on an H200,
# 16,384² elements, cold caches. Read it in a clone:

record = json.loads((Path(ow.__file__).parents[2] / "benchmarks/results/2026-11-21-h200-cuda.json").read_text())
names = ["f16", "f16x2", "f16x8_pack", "f32", "f32x4"]
rows = {row["kernel"]: row for row in record["bandwidth"] if row["n"] == 16384**2 and row["cache"] == "cold"}

figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
bars = axes.barh(names[::-1], [rows[name]["GB/s"] for name in names[::-1]], color="tab:green")
axes.bar_label(bars, [f" {rows[name]['of copy']:.2f} × copy" for name in names[::-1]])
axes.axvline(rows["f32x4"]["GB/s"] / rows["f32x4"]["of copy"], color="black", linewidth=1)
axes.set(xlabel="GB/s on an H200 (line: a copy of as many bytes)", xlim=(0, 5500))
for name in names:
    print(f"{name:10}  {rows[name]['us']:6.1f} µs  {rows[name]['of copy']:.2f} × copy")

# %%
# A thread that moves two bytes at a time gets half of the bandwidth. From 16 bytes on, a kernel is as fast as a copy,
# and nothing wider can be faster.
#
# Is a difference real?
# ---------------------
# A benchmark is honest if it says SAME for the same code. On an H200, 23 kernels timed against themselves gave SAME in
# 46 of 46 comparisons (:download:`record <../../benchmarks/results/2026-11-21-h200-self-comparison.json>`). Try it
# here: this kernel is the reference. ``--no-limits`` leaves out the machine's limits, whose first measurement takes
# half a minute.

write(
    "same.py",
    """
from jaxtyping import Float32
from torch import Tensor

import opwright as ow


@ow.op("tutorial::same_add")
def same_add(x: Float32[Tensor, "n"], y: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return x + y


@same_add.python
def same(x, y):
    return x + y
""",
)
run(
    "opwright bench same.py --quick --no-limits --direction forward --size n=1000000 --device cpu "
    "| grep -v 'the same for all'"
)

# %%
# The last column has the verdict and the ratio of the times. FASTER and SLOWER appear only if the difference exceeds
# the noise. On a busy machine a verdict is often UNCLEAR, and any may be wrong: repeat the measurement.
#
# Next
# ----
# - :doc:`/timing` explains what is measured, and how the verdict is made.
# - :doc:`/cuda` has all ways to attach CUDA code, and more of this record.
# - :doc:`/guides/strides` treats the other fault that contiguous tests hide.
