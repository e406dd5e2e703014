# x + y on the CPU, for what an eager call costs around it.


def add_host[dtype: DType](
    output: Pointer[Scalar[dtype], MutAnyOrigin], output_n: Int64,
    x: Pointer[Scalar[dtype], MutAnyOrigin], x_n: Int64,
    y: Pointer[Scalar[dtype], MutAnyOrigin], y_n: Int64,
):
    for i in range(Int(output_n)):
        output[unsafe_offset=i] = x[unsafe_offset=i] + y[unsafe_offset=i]
