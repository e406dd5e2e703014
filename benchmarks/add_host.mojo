# x + y on the CPU, for what an eager call costs around it.

from std.sys import simd_width_of


def add_host[dtype: DType](
    output: Pointer[Scalar[dtype], MutAnyOrigin], output_n: Int64,
    x: Pointer[Scalar[dtype], MutAnyOrigin], x_n: Int64,
    y: Pointer[Scalar[dtype], MutAnyOrigin], y_n: Int64,
):
    comptime LANES = simd_width_of[dtype]()
    var n = Int(output_n)
    var i = 0
    while i + LANES <= n:
        var sum = x.unsafe_offset(i).unsafe_load[width=LANES]() + y.unsafe_offset(i).unsafe_load[width=LANES]()
        output.unsafe_offset(i).unsafe_store(sum)
        i += LANES
    while i < n:
        output[unsafe_offset=i] = x[unsafe_offset=i] + y[unsafe_offset=i]
        i += 1
