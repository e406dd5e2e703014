"""An operator whose C++ kernels have one fault each, and right ones."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow

SOURCE = Path(__file__).with_name("kernels.cpp")
# What the check has to say.
WRONG = {
    "reads_on": ("reads 4 bytes (heap-buffer-overflow), just after the end of 'x'", "unused = in(source)"),
    "after_free": ("reads 4 bytes (heap-use-after-free)", "kept[0] > 0"),
    "past_its_array": ("(stack-buffer-overflow)", "counts[i] = 1"),
    "overflows": ("signed integer overflow", "index = n * 3"),
}
RIGHT = ("right", "right_with_tiles", "right_deep")
# What ends the process, under AddressSanitizer alone: other checks pass.
ENDS = {
    "aborts": "under AddressSanitizer, the kernel ended its process with SIGABRT",
    "exits": "under AddressSanitizer, the kernel ended its process with exit code 3",
    "overflows_its_stack": "AddressSanitizer: stack-overflow",
}


@ow.op("sanitized::double")
def double(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return 2 * x


for name in (*WRONG, *ENDS, *RIGHT):
    double.cpp(SOURCE, name=name, entry=name)


@double.python(name="in Python")
def in_python(x):
    return torch.mul(x, 2)
