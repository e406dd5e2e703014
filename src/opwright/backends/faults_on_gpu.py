"""Programs with a fault on a GPU: each of compute-sanitizer's tools has to find one, or it does not watch here.

The fault is in a kernel that is compiled and launched as the kernels of operators are, in a process with torch.
"""

from __future__ import annotations

__all__ = ["FAULTS", "PROGRAM", "kernel"]

# Of each tool, the fault of a block of 64 threads that gets 64 numbers, and what it says of that.
FAULTS = {
    "memcheck": ("out[i] = x[i + 1];", "Invalid __global__ read of size 4"),
    "racecheck": ("part[i] = x[i]; out[i] = part[63 - i];", "Race reported"),
    "synccheck": ("if (i < 40) __syncthreads(); out[i] = x[i];", "Barrier error detected"),
}
_KERNEL = """
extern "C" __global__ void fault(const float* x, float* out) {
  __shared__ float part[64];
  int i = threadIdx.x;
  part[i] = 0;
  __syncthreads();
  FAULT
}
"""
# Its argument is the tool.
PROGRAM = """
import sys
import torch
import opwright as ow
from opwright.backends.faults_on_gpu import kernel

x, out = torch.ones(64, device="cuda"), torch.ones(64, device="cuda")
ow.cuda_module(kernel(sys.argv[1]))["fault"][1, 64](x, out)
torch.cuda.synchronize()
"""


def kernel(tool: str) -> str:
    """The source with the fault that a tool has to find."""
    return _KERNEL.replace("FAULT", FAULTS[tool][0])
