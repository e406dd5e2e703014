"""
A Triton kernel under torch.compile
===================================

After this tutorial you can make a PyTorch operator of an autotuned Triton kernel. It has a gradient with a kernel of
its own, runs on a CPU, counts its FLOPs, and can be exported to AOTInductor.

PyTorch's `recipe on user-defined Triton kernels
<https://docs.pytorch.org/tutorials/recipes/torch_compile_user_defined_triton_kernel_tutorial.html>`_ registers each of
these by hand. Here they follow from a reference. This page goes further in three points:

- The check runs every configuration of the autotuner, not only the fastest one.
- It runs without a GPU: a simulator checks every memory access of the kernel.
- You see the code for a GPU that you do not have.

It needs a C++ compiler, and in a clone of the repository ``pip install -e '.[triton]'``. Its files are in a temporary
folder. Two functions stand for your editor and your terminal.
"""

# sphinx_gallery_thumbnail_path = 'pictures/check.svg'

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

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
# The operator and its kernel
# ---------------------------
# The reference is what a CPU runs. The recipe calls that a CPU fallback.

write(
    "sine.py",
    '''
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow


@ow.op("tutorial::sine")
def sine(x: Float32[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
    """The sine of every element."""
    return torch.sin(x)


@ow.op("tutorial::sine_backward")
def sine_backward(grad: Float32[Tensor, "*n"], x: Float32[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
    """The gradient of the sine at x, given that of its result."""
    return grad * torch.cos(x)


sine.register_autograd(sine_backward)

sine.triton("sine_triton.py", entry="sine")
sine_backward.triton("sine_triton.py", entry="sine_backward")
''',
)

# %%
# The forward is autotuned: Triton times three block sizes in the first call, and keeps the fastest. The backward has
# one block size. You need no ``triton_op`` and no ``wrap_triton``.

first_attempt = """
import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 256}, num_warps=4),
        triton.Config({"BLOCK": 1024}, num_warps=4),
        triton.Config({"BLOCK": 2048}, num_warps=8),
    ],
    key=[],
)
@triton.jit
def sine_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out + offsets, tl.sin(tl.load(x + offsets, mask=inside)), mask=inside)


@triton.jit
def sine_backward_kernel(grad, x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    slope = tl.cos(tl.load(x + offsets))
    tl.store(out + offsets, tl.load(grad + offsets, mask=inside) * slope, mask=inside)


def sine(x):
    x = x.contiguous()
    out, n = torch.empty_like(x), x.numel()
    if n > 0:  # a grid may not be empty
        sine_kernel[(triton.cdiv(n, 1024),)](x, out, n)
    return out


def sine_backward(grad, x):
    grad, x = grad.contiguous(), x.contiguous()
    out, n = torch.empty_like(x), x.numel()
    if n > 0:
        sine_backward_kernel[(triton.cdiv(n, 1024),)](grad, x, out, n, BLOCK=1024)
    return out
"""
write("sine_triton.py", first_attempt)
run("opwright check sine.py --level smoke", code=1)

# %%
# Both kernels are wrong:
#
# - ``sine`` starts a program for each 1,024 elements. The configuration with ``BLOCK=256`` then leaves out elements.
#   On your GPU another configuration may win, and your test passes. The check of *configurations* runs all three; its
#   finding is shown under *values*. A ``nan`` is memory that opwright has filled, and the kernel has not written.
# - ``sine_backward`` loads ``x`` without a mask. The report names the line. Each check that runs the backward of
#   ``sine`` reports it, too.
#
# The grid follows from the block size that the autotuner picks, and the load gets its mask:

corrected = first_attempt.replace(
    "sine_kernel[(triton.cdiv(n, 1024),)](x, out, n)",
    "sine_kernel[lambda config: (triton.cdiv(n, config['BLOCK']),)](x, out, n)",
).replace("tl.load(x + offsets))\n", "tl.load(x + offsets, mask=inside))\n")
write("sine_triton.py", corrected)
run("opwright check sine.py")

# %%
# Call it
# -------
# ``ow.explain`` says which kernel a call runs. On this machine without a GPU it is the reference.

sys.path.insert(0, str(folder))

from sine import sine

import opwright as ow

x = torch.randn(1000, requires_grad=True)
ow.explain(sine, x)

# %%
# The operator takes part in ``torch.compile`` without a graph break, forward and backward. On a GPU, the compiler
# traces into the launcher, and the Triton kernel becomes part of its graph.

compiled = torch.compile(lambda x: 2 * sine(x), fullgraph=True)
compiled(x).sum().backward()
print("gradient is right:", torch.allclose(x.grad, 2 * x.cos()))

# %%
# FLOPs are counted on the reference. ``@sine.register_flops`` sets another count.

with FlopCounterMode(display=False) as counter:
    sine(x)
print("FLOPs:", counter.get_total_flops())

# %%
# Export it
# ---------
# ``torch.export`` keeps the operator as one node. AOTInductor compiles the program to a file, which Python or C++
# loads.


class Wave(torch.nn.Module):
    def forward(self, x):
        return sine(x) + 1


program = torch.export.export(Wave(), (torch.zeros(8),))
print(program.graph_module.code.strip())

file = torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "wave.pt2"))
wave = torch._inductor.aoti_load_package(file)
print("\nfrom the file:", wave(torch.linspace(0, 3, 8)))

# %%
# The code for a GPU
# ------------------
# Triton compiles for an H100 here, too. You see how many registers a thread takes, and whether it spills some of them
# to memory.

run("opwright show sine.py:sine --what resources --kernel triton --arch sm_90")

# %%
# Next
# ----
# - :doc:`/triton-on-a-cpu` says what the simulator checks.
# - :doc:`/transforms` has every transform and how an operator takes part in it.
# - :doc:`/guides/slow-call` shows where the time of a call goes.
