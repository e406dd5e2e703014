"""
A Mojo convolution as a PyTorch operator, beside MAX
====================================================

After this tutorial you can write a kernel in Mojo and call it as a PyTorch operator, with a gradient and under
``torch.compile``. You can also put the same function into a MAX graph.

Modular's text on `custom operators in PyTorch <https://puzzles.modular.com>`_ does this with MAX's
``CustomOpLibrary``, for a convolution of 15 elements with 4. This page goes further in four points:

- One compiled kernel takes all sizes. Its compilation takes seconds, and no graph is needed.
- The function gets pointers and sizes, so the Mojo file has no names of MAX.
- The operator has a gradient and takes part in ``torch.compile``.
- A check finds the read past the end that the original sizes do not show.

It needs a C++ compiler, and in a clone of the repository ``pip install -e '.[mojo,max]'``. Its files are in a temporary
folder. Two functions stand for your editor and your terminal.
"""

# sphinx_gallery_thumbnail_path = 'pictures/times.svg'

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
    print(done.stdout.partition("\nnot checked\n")[0])  # what could not be checked is left out here
    assert done.returncode == code, done.stdout + done.stderr


# %%
# The operator
# ------------
# The reference says what the result is: each element is the sum of the next ones times the taps, and zeros follow the
# end.

write(
    "conv.py",
    """
import torch.nn.functional as F
from jaxtyping import Float32
from torch import Tensor

import opwright as ow


@ow.op("tutorial::conv1d")
def conv1d(x: Float32[Tensor, "n"], k: Float32[Tensor, "m"]) -> Float32[Tensor, "n"]:
    padded = F.pad(x, (0, k.shape[0]))
    return F.conv1d(padded[None, None], k[None, None])[0, 0, : x.shape[0]]


conv1d.mojo("conv1d.mojo")
""",
)

# %%
# The Mojo function gets the outputs and then the arguments. A tensor is a pointer and one ``Int64`` for each dim.

first = """
def conv1d(
    output: Pointer[Float32, MutAnyOrigin], output_n: Int64,
    x: Pointer[Float32, MutAnyOrigin], n: Int64,
    k: Pointer[Float32, MutAnyOrigin], m: Int64,
):
    for i in range(Int(n)):
        var total = Float32(0)
        for j in range(m):
            total += x[unsafe_offset=i + j] * k[unsafe_offset=j]
        output[unsafe_offset=i] = total
"""
write("conv1d.mojo", first)
run("opwright check conv.py --level smoke --check values", code=1)

# %%
# This does not compile. ``range(m)`` counts in ``Int64``, and an offset is an ``Int``. The message has Mojo's line and
# column. You convert the size:

second = first.replace("range(m)", "range(Int(m))")
write("conv1d.mojo", second)
run("opwright check conv.py --level smoke --check values --check memory", code=1)

# %%
# It compiles now, and is wrong. The last outputs read past the end of ``x``. If that memory holds zeros by chance, your
# test passes. The check of *memory* puts known bytes after each tensor, and runs the kernel again with other bytes. The
# results differ, so they depend on memory outside of the arguments.
#
# Past the end the input counts as zeros:

third = second.replace(
    "            total +=",
    "            if i + j < Int(n):\n                total +=",
)
write("conv1d.mojo", third)
run("opwright check conv.py --check values --check memory --check gradients --check torch.compile")

# %%
# Beside MAX
# ----------
# MAX wants a registered struct, and a folder that is a Mojo package. The struct calls the same function. With
# ``symbolic=True`` opwright puts it into a MAX graph, which MAX compiles once for all sizes.

write("__init__.mojo", "")
write(
    "max_op.mojo",
    """
import extensibility
from extensibility import InputTensor, OutputTensor

from .conv1d import conv1d


@extensibility.register("conv1d")
struct Conv1D:
    @staticmethod
    def execute[
        target: StaticString
    ](
        output: OutputTensor[dtype=DType.float32, rank=1, ...],
        x: InputTensor[dtype=DType.float32, rank=1, ...],
        k: InputTensor[dtype=DType.float32, rank=1, ...],
    ) raises:
        var n = Int64(x.dim_size(0))
        conv1d(output.unsafe_ptr(), n, x.unsafe_ptr(), n, k.unsafe_ptr(), Int64(k.dim_size(0)))
""",
)

write(
    "compare.py",
    """
import time

import numpy as np
import torch
from conv import conv1d

conv1d.mojo("max_op.mojo", abi="max", symbolic=True, name="max")

x, k = torch.arange(15.0), torch.arange(4.0)
print("NumPy", np.convolve(np.append(x, np.zeros(3)), k.flip(0), mode="valid").astype(int).tolist())
for name in ("mojo", "max"):
    start = time.perf_counter()
    result = conv1d.kernels[name](x, k)
    first = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(100):
        conv1d.kernels[name](x, k)
    later = (time.perf_counter() - start) / 100
    print(f"{name:5} {result.int().tolist()}")
    print(f"      first call {first:.1f} s, later ones {1e6 * later:.0f} µs")

x.requires_grad_()
torch.compile(lambda x: conv1d(x, k).sum(), fullgraph=True, backend="aot_eager")(x).backward()
print("gradient of x:", x.grad.int().tolist())
""",
)
run("python compare.py")

# %%
# All agree. The Mojo kernel has been compiled by the check, so its first call is short. MAX compiles a graph for half a
# minute. If you have kernels for MAX already, attach them with ``abi="max"``; otherwise write plain functions.
#
# Next
# ----
# - :doc:`/mojo` has kernels for a GPU, compile-time parameters, and times on an H200.
# - :doc:`/fast-calls` explains how a call of ``conv1d(...)`` skips torch's dispatcher.
# - :doc:`/guides/verdicts` says what a passed check does not tell.
