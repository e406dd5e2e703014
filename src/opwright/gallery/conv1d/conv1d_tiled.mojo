"""1-D convolution in Mojo on a GPU, in tiles of shared memory: a block brings its inputs once, and sums from there.

Half types are summed in float32 and rounded once. Past the end the input counts as zeros.
"""

from std.memory import stack_allocation
from std.sys import size_of
from max.gpu import barrier, block_idx, thread_idx

comptime THREADS = 256
comptime ROUNDS = 2
# Taps that one pass over a tile takes, one a thread; a longer kernel takes several passes.
comptime TAPS = THREADS

comptime Global[dtype: DType] = Pointer[Scalar[dtype], MutAnyOrigin]
comptime Shared[dtype: DType] = Pointer[Scalar[dtype], MutUntrackedOrigin, address_space=AddressSpace.SHARED]


def accumulator[dtype: DType]() -> DType:
    """What sums are kept in."""
    return DType.float64 if dtype == DType.float64 else DType.float32


def in_16_bytes[dtype: DType]() -> Int:
    """Elements, which a thread loads and stores at once."""
    return 16 // size_of[dtype]()


def conv1d_tiled[
    dtype: DType
](output: Global[dtype], output_n: Int64, x: Global[dtype], n: Int64, k: Global[dtype], m: Int64):
    """In blocks of ``THREADS``, each of which gives ``ROUNDS`` times 16 bytes a thread.

    ``x`` has to be aligned to 16 bytes.
    """
    comptime acc = accumulator[dtype]()
    comptime LANES = in_16_bytes[acc]()
    comptime TILE = THREADS * ROUNDS * in_16_bytes[dtype]()
    var tile = stack_allocation[TILE + TAPS, Scalar[acc], address_space=AddressSpace.SHARED, alignment=16]()
    var taps = stack_allocation[TAPS, Scalar[acc], address_space=AddressSpace.SHARED, alignment=16]()
    var totals = Array[SIMD[acc, LANES], TILE // THREADS // LANES](fill=SIMD[acc, LANES](0))
    var start = Int(block_idx.x) * TILE
    var first = 0
    while first < Int(m):
        # Within a tile 32 bits count: to compare 64 takes two instructions, and to keep them two registers.
        var count = Int32(min(TAPS, Int(m) - first))
        var left = Int32(max(0, min(TILE + TAPS, Int(n) - start - first)))
        if first > 0:
            barrier()  # the tile before is not needed any more
        # Only the last blocks compare each position with the end.
        if left == Int32(TILE + TAPS):
            fill[inside=True](tile, taps, x.unsafe_offset(start + first), left, k.unsafe_offset(first), count)
        else:
            fill[inside=False](tile, taps, x.unsafe_offset(start + first), left, k.unsafe_offset(first), count)
        barrier()
        add_taps[dtype](totals, tile, taps, count)
        first += TAPS
    store(output.unsafe_offset(start), totals, Int32(min(TILE, Int(n) - start)))


@always_inline
def place[dtype: DType](round: Int) -> Int32:
    """Where in the tile a thread's 16 bytes are."""
    return (Int32(round * THREADS) + Int32(thread_idx.x)) * Int32(in_16_bytes[dtype]())


@always_inline
def fill[
    dtype: DType, acc: DType, //, inside: Bool
](tile: Shared[acc], taps: Shared[acc], x: Global[dtype], left: Int32, k: Global[dtype], count: Int32):
    """Brings the input from ``x`` on, as far beyond the tile as ``count`` taps reach, and these taps."""
    comptime EACH = in_16_bytes[dtype]()
    # All of a thread's loads are under way before the first is waited for.
    var loaded = Array[SIMD[dtype, EACH], ROUNDS + 1](fill=SIMD[dtype, EACH](0))
    comptime for r in range(ROUNDS):
        loaded[r] = load_or_zero[EACH, inside](x, place[dtype](r), left)
    var reaches_beyond = place[dtype](0) < count - 1
    if reaches_beyond:
        loaded[ROUNDS] = load_or_zero[EACH, inside](x, place[dtype](ROUNDS), left)
    var tap = Scalar[dtype](0)
    var own = Int(thread_idx.x)
    if Int32(own) < count:
        tap = k.unsafe_offset(own).unsafe_load[invariant=True]()
    comptime for r in range(ROUNDS):
        put(tile, place[dtype](r), loaded[r])
    if reaches_beyond:
        put(tile, place[dtype](ROUNDS), loaded[ROUNDS])
    taps[unsafe_offset=own] = tap.cast[acc]()


@always_inline
def load_or_zero[
    dtype: DType, //, EACH: Int, inside: Bool
](x: Global[dtype], position: Int32, left: Int32) -> SIMD[dtype, EACH]:
    """``EACH`` elements from an aligned position on; zeros past the end, which is not looked for ``inside``."""
    var source = x.unsafe_offset(Int(position))
    var remaining = left - position
    if inside or remaining >= Int32(EACH):
        # Nobody writes what is read here, so the load may be one that the hardware need not keep coherent.
        return source.unsafe_load[width=EACH, alignment=16, invariant=True]()
    var values = SIMD[dtype, EACH](0)
    comptime for e in range(EACH):
        if Int32(e) < remaining:
            values[e] = source[unsafe_offset=e]
    return values


@always_inline
def put[dtype: DType, acc: DType, EACH: Int](tile: Shared[acc], at: Int32, values: SIMD[dtype, EACH]):
    comptime LANES = in_16_bytes[acc]()
    comptime for p in range(EACH // LANES):
        var part = values.slice[LANES, offset = p * LANES]().cast[acc]()
        tile.unsafe_offset(Int(at) + p * LANES).unsafe_store[alignment=16](part)


@always_inline
def add_taps[
    acc: DType, LANES: Int, COUNT: Int, //, dtype: DType
](mut totals: Array[SIMD[acc, LANES], COUNT], tile: Shared[acc], taps: Shared[acc], count: Int32):
    """Adds what ``count`` taps give.

    A thread keeps a window of the tile in registers, which moves on by ``LANES`` elements for every ``LANES`` taps.
    """
    comptime PARTS = COUNT // ROUNDS
    comptime for r in range(ROUNDS):
        var under = tile.unsafe_offset(Int(place[dtype](r)))
        var window = Array[SIMD[acc, LANES], PARTS + 1](fill=SIMD[acc, LANES](0))
        comptime for p in range(PARTS):
            window[p] = under.unsafe_offset(p * LANES).unsafe_load[width=LANES, alignment=16]()
        var j = Int32(0)
        while j < count:
            window[PARTS] = under.unsafe_offset(Int(j) + PARTS * LANES).unsafe_load[width=LANES, alignment=16]()
            var group = taps.unsafe_offset(Int(j)).unsafe_load[width=LANES, alignment=16]()
            comptime for q in range(LANES):
                # Not a tap of zero, which would make NaN of an infinite input.
                if j + Int32(q) < count:
                    var tap = SIMD[acc, LANES](group[q])
                    comptime for p in range(PARTS):
                        var values = window[p].join(window[p + 1]).slice[LANES, offset=q]()
                        totals[r * PARTS + p] = values.fma(tap, totals[r * PARTS + p])
            comptime for p in range(PARTS):
                window[p] = window[p + 1]
            j += Int32(LANES)


@always_inline
def store[
    dtype: DType, acc: DType, LANES: Int, COUNT: Int
](output: Global[dtype], totals: Array[SIMD[acc, LANES], COUNT], left: Int32):
    comptime EACH = in_16_bytes[dtype]()
    comptime for r in range(ROUNDS):
        var values = SIMD[dtype, EACH](0)
        comptime for e in range(EACH):
            values[e] = totals[(r * EACH + e) // LANES][e % LANES].cast[dtype]()
        var target = output.unsafe_offset(Int(place[dtype](r)))
        var remaining = left - place[dtype](r)
        if remaining >= Int32(EACH):
            target.unsafe_store[alignment=16](values)
        else:
            comptime for e in range(EACH):
                if Int32(e) < remaining:
                    target[unsafe_offset=e] = values[e]
