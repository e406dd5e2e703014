"""Softmax over the last dim in Mojo, on the CPU, in SIMD vectors. Sums are in float32."""

from std.math import exp
from std.sys import simd_width_of
from std.utils.numerics import isnan, neg_inf

comptime FLOAT = DType.float32
comptime LANES = simd_width_of[FLOAT]() * 2


def softmax[
    dtype: DType
](
    output: Pointer[Scalar[dtype], MutAnyOrigin],
    output_b: Int64,
    output_n: Int64,
    x: Pointer[Scalar[dtype], MutAnyOrigin],
    b: Int64,
    n: Int64,
):
    for row in range(Int(b)):
        softmax_row(output.unsafe_offset(row * Int(n)), x.unsafe_offset(row * Int(n)), Int(n))


@always_inline
def load[
    dtype: DType, //, width: Int
](x: Pointer[Scalar[dtype], MutAnyOrigin], at: Int) -> SIMD[FLOAT, width]:
    return x.unsafe_offset(at).unsafe_load[width=width]().cast[FLOAT]()


@always_inline
def power[width: Int](x: SIMD[FLOAT, width]) -> SIMD[FLOAT, width]:
    return isnan(x).select(x, exp(x))  # of NaN, Mojo's exp is 0


def softmax_row[
    dtype: DType, //
](output: Pointer[Scalar[dtype], MutAnyOrigin], x: Pointer[Scalar[dtype], MutAnyOrigin], n: Int):
    var whole = n // LANES * LANES  # what is read in vectors
    var vector = SIMD[FLOAT, LANES](neg_inf[FLOAT]())
    for i in range(0, whole, LANES):
        vector = max(vector, load[LANES](x, i))
    var largest = vector.reduce_max()
    for i in range(whole, n):
        largest = max(largest, load[1](x, i))
    var totals = SIMD[FLOAT, LANES](0)
    for i in range(0, whole, LANES):
        totals += power[LANES](load[LANES](x, i) - largest)
    var total = totals.reduce_add()
    for i in range(whole, n):
        total += power[1](load[1](x, i) - largest)
    for i in range(0, whole, LANES):  # computed again: the results may be too narrow to keep the powers
        output.unsafe_offset(i).unsafe_store((power[LANES](load[LANES](x, i) - largest) / total).cast[dtype]())
    for i in range(whole, n):
        output[unsafe_offset=i] = (power[1](load[1](x, i) - largest) / total).cast[dtype]()
