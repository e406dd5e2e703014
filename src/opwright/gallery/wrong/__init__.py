"""Two kernels that are wrong on purpose, for ``opwright demo`` to find. They are not among the gallery's ``OPERATORS``.

Both compute one element too many. In CUDA no result shows that: all elements of the output are correct, and the one
past the end is other memory. A test that compares outputs passes, on a GPU perhaps for years. opwright runs the kernel
in its simulator, which checks every access, and names the line.
"""

from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.gallery.wrong.scale_python import loop

__all__ = ["FAULTS", "scale"]

THREADS = 256


@ow.op("wrong::scale")
def scale(x: Float32[Tensor, " n"], a: Annotated[float, ow.values(0.5, 2.0)]) -> Float32[Tensor, " n"]:
    """``a * x``, elementwise."""
    return a * x


cuda = ow.cuda_module("scale.cu")


@scale.cuda(name="cuda")
def launch(x, a):
    x = x.contiguous()
    out = torch.empty_like(x)
    cuda["scale"][ow.cdiv(x.numel(), THREADS), THREADS](x, out, a, x.numel())
    return out


scale.python(loop, name="python")

# For each kernel: the device that shows the fault, the file, and the explanation.
FAULTS = {
    "cuda": (
        "cpu-sim",
        Path(__file__).with_name("scale.cu"),
        "It has i <= n instead of i < n. All its results are correct, but it reads and writes one element past "
        "the end. The simulator checks every access:",
    ),
    "python": ("cpu", Path(__file__).with_name("scale_python.py"), "Its loop takes one step too many:"),
}
