"""1-D convolution in Mojo: one body for the CPU, in SIMD vectors, and one for a GPU, in windows of registers.

Half types are summed in float32 and rounded once. Past the end the input counts as zeros.
"""

from std.sys import simd_width_of, size_of
from max.gpu import block_idx, thread_idx

comptime THREADS = 256
comptime ROUNDS = 2


def accumulator[dtype: DType]() -> DType:
    """What sums are kept in."""
    return DType.float64 if dtype == DType.float64 else DType.float32


def conv1d[
    dtype: DType, width: Int = 0
](
    output: Pointer[Scalar[dtype], MutAnyOrigin],
    output_n: Int64,
    x: Pointer[Scalar[dtype], MutAnyOrigin],
    n: Int64,
    k: Pointer[Scalar[dtype], MutAnyOrigin],
    m: Int64,
):
    """On the CPU. A ``width`` above 0 fixes m, and unrolls the loop over taps."""
    comptime acc = accumulator[dtype]()
    comptime LANES = simd_width_of[acc]()
    comptime VECTORS = 4  # that are summed side by side, so that additions do not wait for one another
    var size = Int(n)
    var taps = width if width > 0 else Int(m)
    var i = 0
    while i + LANES * VECTORS + taps - 1 <= size:  # away from the end, whole vectors
        comptime if width > 0:
            vectors_at[dtype, acc, LANES, VECTORS, width](output, x, k, width, i)
        else:
            vectors_at[dtype, acc, LANES, VECTORS, 0](output, x, k, taps, i)
        i += LANES * VECTORS
    while i < size:
        var total = Scalar[acc](0)
        for j in range(taps):
            var value = x[unsafe_offset=i + j].cast[acc]() if i + j < size else Scalar[acc](0)
            total += value * k[unsafe_offset=j].cast[acc]()
        output[unsafe_offset=i] = total.cast[dtype]()
        i += 1


@always_inline
def vectors_at[
    dtype: DType, acc: DType, LANES: Int, VECTORS: Int, width: Int
](
    output: Pointer[Scalar[dtype], MutAnyOrigin],
    x: Pointer[Scalar[dtype], MutAnyOrigin],
    k: Pointer[Scalar[dtype], MutAnyOrigin],
    taps: Int,
    i: Int,
):
    """``VECTORS`` vectors of outputs from ``i`` on."""
    var totals = Array[SIMD[acc, LANES], VECTORS](fill=SIMD[acc, LANES](0))

    comptime if width > 0:
        comptime for j in range(width):
            add_tap(totals, x, k, i, j)
    else:
        for j in range(taps):
            add_tap(totals, x, k, i, j)
    comptime for v in range(VECTORS):
        output.unsafe_offset(i + v * LANES).unsafe_store(totals[v].cast[dtype]())


@always_inline
def add_tap[
    dtype: DType, acc: DType, LANES: Int, VECTORS: Int
](
    mut totals: Array[SIMD[acc, LANES], VECTORS],
    x: Pointer[Scalar[dtype], MutAnyOrigin],
    k: Pointer[Scalar[dtype], MutAnyOrigin],
    i: Int,
    j: Int,
):
    var tap = SIMD[acc, LANES](k[unsafe_offset=j].cast[acc]())
    comptime for v in range(VECTORS):
        var values = x.unsafe_offset(i + j + v * LANES).unsafe_load[width=LANES]().cast[acc]()
        totals[v] = values.fma(tap, totals[v])


def conv1d_taps[
    dtype: DType
](
    output: Pointer[Scalar[dtype], MutAnyOrigin],
    output_m: Int64,
    x: Pointer[Scalar[dtype], MutAnyOrigin],
    n: Int64,
    grad: Pointer[Scalar[dtype], MutAnyOrigin],
    grad_n: Int64,
    m: Int64,
):
    """The gradient for the taps, on the CPU."""
    comptime acc = accumulator[dtype]()
    comptime LANES = simd_width_of[acc]() * 4
    comptime BLOCK = 4096  # products that are summed before they are added to the rest, which keeps rounding small
    var size = Int(n)
    for j in range(Int(m)):
        var total = Scalar[acc](0)
        for start in range(0, size, BLOCK):
            var end = min(start + BLOCK, size)
            var totals = SIMD[acc, LANES](0)
            var i = start
            while i + LANES <= min(end, size - j):
                var values = x.unsafe_offset(i + j).unsafe_load[width=LANES]().cast[acc]()
                totals = values.fma(grad.unsafe_offset(i).unsafe_load[width=LANES]().cast[acc](), totals)
                i += LANES
            total += totals.reduce_add()
            while i < end:
                var value = x[unsafe_offset=i + j].cast[acc]() if i + j < size else Scalar[acc](0)
                total += value * grad[unsafe_offset=i].cast[acc]()
                i += 1
        output[unsafe_offset=j] = total.cast[dtype]()


@always_inline
def load_or_zero[
    dtype: DType, //, EACH: Int, inside: Bool
](x: Pointer[Scalar[dtype], MutAnyOrigin], position: Int, size: Int) -> SIMD[dtype, EACH]:
    """``EACH`` elements from an aligned position on; zeros past the end, which is not looked for ``inside``."""
    if inside or position + EACH <= size:
        # Nobody writes what is read here, so the load may be one that the hardware need not keep coherent.
        return x.unsafe_offset(position).unsafe_load[width=EACH, alignment=16, invariant=True]()
    var values = SIMD[dtype, EACH](0)
    comptime for e in range(EACH):
        if position + e < size:
            values[e] = x[unsafe_offset=position + e]
    return values


def conv1d_gpu[
    dtype: DType, width: Int = 0
](
    output: Pointer[Scalar[dtype], MutAnyOrigin],
    output_n: Int64,
    x: Pointer[Scalar[dtype], MutAnyOrigin],
    n: Int64,
    k: Pointer[Scalar[dtype], MutAnyOrigin],
    m: Int64,
):
    """On a GPU, in blocks of ``THREADS``, each of which gives ``ROUNDS`` times 16 bytes a thread.

    ``x`` has to be aligned to 16 bytes.
    """
    comptime EACH = 16 // size_of[dtype]()
    comptime TILE = THREADS * ROUNDS * EACH
    var start = Int(block_idx.x) * TILE
    var left = Int(n) - start
    var taps = width if width > 0 else Int(m)
    # Only the last blocks compare each position with the end, which takes as many instructions as all the rest.
    if TILE + taps + EACH <= left:
        convolve_tile[inside=True](output.unsafe_offset(start), x.unsafe_offset(start), left, k, taps)
    else:
        convolve_tile[inside=False](output.unsafe_offset(start), x.unsafe_offset(start), left, k, taps)


@always_inline
def convolve_tile[
    dtype: DType, //, inside: Bool
](
    output: Pointer[Scalar[dtype], MutAnyOrigin],
    x: Pointer[Scalar[dtype], MutAnyOrigin],
    size: Int,
    k: Pointer[Scalar[dtype], MutAnyOrigin],
    taps: Int,
):
    """One block's outputs.

    A thread keeps a window of the input in registers: the elements under its outputs and as many after them. These
    are its neighbour's, so the second load of them is met by the cache.
    """
    comptime acc = accumulator[dtype]()
    comptime EACH = 16 // size_of[dtype]()  # what a thread loads and stores at once
    comptime ROUND = THREADS * EACH
    var first = Int(thread_idx.x) * EACH
    var windows = Array[SIMD[dtype, 2 * EACH], ROUNDS](fill=SIMD[dtype, 2 * EACH](0))
    var totals = Array[SIMD[acc, EACH], ROUNDS](fill=SIMD[acc, EACH](0))
    # All of these loads are under way before the first is waited for.
    comptime for r in range(ROUNDS):
        var own = load_or_zero[EACH, inside](x, first + r * ROUND, size)
        windows[r] = own.join(load_or_zero[EACH, inside](x, first + r * ROUND + EACH, size))
    var j = 0
    while True:
        var group = SIMD[dtype, EACH](0)
        comptime for q in range(EACH):
            if j + q < taps:
                group[q] = k[unsafe_offset=j + q]
        comptime for q in range(EACH):
            if j + q < taps:
                var tap = SIMD[acc, EACH](group[q].cast[acc]())
                comptime for r in range(ROUNDS):
                    totals[r] = windows[r].slice[EACH]().cast[acc]().fma(tap, totals[r])
            comptime for r in range(ROUNDS):
                windows[r] = windows[r].rotate_left[1]()
        j += EACH
        if j >= taps:
            break
        comptime for r in range(ROUNDS):
            var next = load_or_zero[EACH, inside](x, first + r * ROUND + j + EACH, size)
            windows[r] = windows[r].insert[offset=EACH](next)

    comptime for r in range(ROUNDS):
        var position = first + r * ROUND
        var values = totals[r].cast[dtype]()
        if inside or position + EACH <= size:
            output.unsafe_offset(position).unsafe_store[alignment=16](values)
        else:
            comptime for e in range(EACH):
                if position + e < size:
                    output[unsafe_offset=position + e] = values[e]
