"""The convolution as a custom operator of MAX: the same body as in conv1d.mojo, for CustomOpLibrary and MAX graphs."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from std.math import ceildiv
from std.sys import size_of

from .conv1d import ROUNDS, THREADS, conv1d, conv1d_gpu


@extensibility.register("conv1d")
struct Conv1D:
    @staticmethod
    def execute[
        target: StaticString,  # "cpu" or "gpu": set by MAX
        n: Int = 0,  # above 0, the sizes that the caller fixes
        m: Int = 0,
    ](
        output: OutputTensor[rank=1, ...],
        x: InputTensor[dtype=output.dtype, rank=1, ...],
        k: InputTensor[dtype=output.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime dtype = output.dtype
        var size = Int64(n if n > 0 else x.dim_size(0))
        var taps = Int64(m if m > 0 else k.dim_size(0))

        comptime if target == "gpu":
            comptime TILE = ROUNDS * 16 * THREADS // size_of[dtype]()
            ctx.enqueue_function[conv1d_gpu[dtype, m]](
                output.unsafe_ptr(), size, x.unsafe_ptr(), size, k.unsafe_ptr(), taps,
                grid_dim=ceildiv(Int(size), TILE), block_dim=THREADS,
            )
        else:
            conv1d[dtype, m](output.unsafe_ptr(), size, x.unsafe_ptr(), size, k.unsafe_ptr(), taps)
