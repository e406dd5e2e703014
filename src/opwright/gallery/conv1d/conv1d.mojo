"""1-D convolution in Mojo: one body for the CPU, in SIMD vectors, and one for a GPU, in tiles of shared memory.

Half types are summed in float32 and rounded once. Past the end the input counts as zeros.
"""

from std.memory import stack_allocation
from std.sys import simd_width_of, size_of
from max.gpu import barrier, block_idx, thread_idx

comptime THREADS = 256
# Taps that one pass over a tile takes: a longer kernel takes several passes.
comptime TAPS = 256


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
    EACH: Int, dtype: DType
](x: Pointer[Scalar[dtype], MutAnyOrigin], position: Int, size: Int) -> SIMD[dtype, EACH]:
    """``EACH`` elements from an aligned position on; zeros past the end."""
    if position + EACH <= size:
        return x.unsafe_offset(position).unsafe_load[width=EACH, alignment=16]()
    var values = SIMD[dtype, EACH](0)
    comptime for e in range(EACH):
        if position + e < size:
            values[e] = x[unsafe_offset=position + e]
    return values


@always_inline
def put[
    LANES: Int, EACH: Int, acc: DType
](
    tile: Pointer[Scalar[acc], MutUntrackedOrigin, address_space=AddressSpace.SHARED], at: Int, values: SIMD[acc, EACH]
):
    comptime for p in range(EACH // LANES):
        tile.unsafe_offset(at + p * LANES).unsafe_store[alignment=16](values.slice[LANES, offset = p * LANES]())


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

    A block brings its tile, and as much beyond it as the taps reach, into shared memory with 16-byte loads, which is
    why ``x`` has to be aligned to 16 bytes. A thread then keeps a window of the tile in registers, which moves on by
    ``LANES`` elements for every ``LANES`` taps.
    """
    comptime acc = accumulator[dtype]()
    comptime LANES = 16 // size_of[acc]()  # what shared memory gives a thread at once
    comptime EACH = 16 // size_of[dtype]()  # what a thread loads and stores at once
    comptime ROUNDS = 2
    comptime TILE = THREADS * EACH * ROUNDS
    comptime PARTS = EACH // LANES
    var tile = stack_allocation[TILE + TAPS, Scalar[acc], address_space=AddressSpace.SHARED, alignment=16]()
    var taps = stack_allocation[TAPS, Scalar[acc], address_space=AddressSpace.SHARED, alignment=16]()
    var thread = Int(thread_idx.x)
    var start = Int(block_idx.x) * TILE
    var size = Int(n)
    var length = width if width > 0 else Int(m)
    var totals = Array[SIMD[acc, LANES], ROUNDS * PARTS](fill=SIMD[acc, LANES](0))

    var first = 0
    while first < length:
        var count = min(TAPS, length - first)
        if first > 0:
            barrier()  # the tile before is not needed any more
        # All of a thread's loads are under way before the first is waited for.
        var origin = start + first
        var loaded = Array[SIMD[dtype, EACH], ROUNDS](fill=SIMD[dtype, EACH](0))
        comptime for r in range(ROUNDS):
            loaded[r] = load_or_zero[EACH](x, origin + (r * THREADS + thread) * EACH, size)
        # The first warps bring what lies beyond the tile, the last ones the taps.
        for at in range(TILE + thread * EACH, TILE + count - 1, THREADS * EACH):
            put[LANES](tile, at, load_or_zero[EACH](x, origin + at, size).cast[acc]())
        for j in range(THREADS - 1 - thread, count, THREADS):
            taps[unsafe_offset=j] = k[unsafe_offset=first + j].cast[acc]()
        comptime for r in range(ROUNDS):
            put[LANES](tile, (r * THREADS + thread) * EACH, loaded[r].cast[acc]())
        barrier()

        comptime for r in range(ROUNDS):
            var base = (r * THREADS + thread) * EACH
            var window = Array[SIMD[acc, LANES], PARTS + 1](fill=SIMD[acc, LANES](0))
            comptime for p in range(PARTS):
                window[p] = tile.unsafe_offset(base + p * LANES).unsafe_load[width=LANES, alignment=16]()
            var j = 0
            while j < count:
                window[PARTS] = tile.unsafe_offset(base + j + EACH).unsafe_load[width=LANES, alignment=16]()
                var tap = taps.unsafe_offset(j).unsafe_load[width=LANES, alignment=16]()
                comptime for q in range(LANES):
                    if j + q < count:
                        comptime for p in range(PARTS):
                            var both = window[p].join(window[p + 1])
                            totals[r * PARTS + p] = both.slice[LANES, offset=q]().fma(
                                SIMD[acc, LANES](tap[q]), totals[r * PARTS + p]
                            )
                comptime for p in range(PARTS):
                    window[p] = window[p + 1]
                j += LANES
        first += TAPS

    comptime for r in range(ROUNDS):
        var position = start + (r * THREADS + thread) * EACH
        var values = SIMD[dtype, EACH](0)
        comptime for e in range(EACH):
            values[e] = totals[r * PARTS + e // LANES][e % LANES].cast[dtype]()
        if position + EACH <= size:
            output.unsafe_offset(position).unsafe_store[alignment=16](values)
        else:
            comptime for e in range(EACH):
                if position + e < size:
                    output[unsafe_offset=position + e] = values[e]
