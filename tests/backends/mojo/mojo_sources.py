"""A Mojo kernel for a GPU, and how it is launched, for the tests of Mojo."""

from __future__ import annotations

import opwright as ow

__all__ = ["GPU", "GPU_SCALE"]

GPU_SCALE = """
from max.gpu import block_dim, block_idx, thread_idx

def scale[dtype: DType](
    output: Pointer[Scalar[dtype], MutAnyOrigin], output_n: Int64,
    x: Pointer[Scalar[dtype], MutAnyOrigin], n: Int64,
):
    var i = Int(block_idx.x * block_dim.x + thread_idx.x)
    if i < Int(n):
        output[unsafe_offset=i] = x[unsafe_offset=i] * 2
"""
GPU = {"devices": ["cuda"], "grid": lambda x: ow.cdiv(x.numel(), 128), "block": 128}
