"""Triton kernels of the simulator's tests: right ones, and ones with a planted fault each, marked ``# wrong``."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


@triton.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def softmax(x, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    row = tl.program_id(0) * n
    v = tl.load(x + row + i, mask=i < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row + i, e / tl.sum(e, 0), mask=i < n)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in tl.range(0, K, BK, num_stages=2):
        k = start + tl.arange(0, BK)
        left = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c + m[:, None] * N + n[None, :], total.to(c.dtype.element_ty), mask=mask)


@triton.jit
def _multiply(a, b):
    return a * b


@triton.jit
def _later(value_a, index_a, value_b, index_b):
    take = value_b > value_a
    return tl.where(take, value_b, value_a), tl.where(take, index_b, index_a)


@triton.jit
def reductions(x, out, N: tl.constexpr, M: tl.constexpr):
    i, j = tl.arange(0, N), tl.arange(0, M)
    v = tl.load(x + i[:, None] * M + j[None, :])
    tl.store(out + j, tl.sum(v, 0))
    tl.store(out + M + j, tl.reduce(v, 0, _multiply))
    tl.store(out + 2 * M + j, tl.argmax(v, 0).to(tl.float32))
    values, indices = tl.reduce((v, tl.broadcast_to(i[:, None], (N, M))), 0, _later)
    tl.store(out + 3 * M + j, values + indices)


@triton.jit
def scans(x, out, N: tl.constexpr, M: tl.constexpr):
    at = tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :]
    v = tl.load(x + at)
    tl.store(out + at, tl.cumsum(v, 1))
    tl.store(out + N * M + at, tl.cumsum(v, 0, reverse=True))
    tl.store(out + 2 * N * M + at, tl.associative_scan(v, 0, _multiply))


@triton.jit
def shapes(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    v = tl.load(x + at)
    tl.store(out + at, tl.trans(v))
    first, second = tl.split(tl.reshape(v, (N, N // 2, 2)))
    tl.store(out + N * N + at, tl.reshape(tl.join(second, first), (N, N)))
    tl.store(out + 2 * N * N + at, tl.sort(v))
    tl.store(out + 3 * N * N + at, tl.gather(v, tl.flip(tl.broadcast_to(i[None, :], (N, N)), 1), 1))


@triton.jit
def integers(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, a // b)
    tl.store(out + B + i, a % b)
    tl.store(out + 2 * B + i, (a ^ b) | (a & 7))
    tl.store(out + 3 * B + i, (a >> 2) + (b << 3))
    tl.store(out + 4 * B + i, tl.where(a > b, tl.abs(a), tl.minimum(a, b)))


@triton.jit
def cast(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


@triton.jit
def histogram(x, out, B: tl.constexpr, BINS: tl.constexpr):
    tl.store(out + tl.arange(0, BINS), tl.histogram(tl.load(x + tl.arange(0, B)), BINS))


@triton.jit
def collatz(x, out):
    v = tl.load(x + tl.program_id(0))
    steps = 0
    while v != 1:
        if v % 2 == 0:  # noqa: SIM108 - Triton makes another operation of a conditional expression
            v = v // 2
        else:
            v = 3 * v + 1
        steps += 1
    if steps > 100:
        return
    tl.store(out + tl.program_id(0), steps)


@triton.jit
def count(x, lock, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=0)
    tl.atomic_add(out, tl.sum(v, 0))
    tl.atomic_max(out + 1, tl.max(v, 0))
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(out + 2, tl.load(out + 2) + 1)
    tl.atomic_xchg(lock, 0)


@triton.jit
def assembly(x, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(x + i)], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(x + i, v)


@triton.jit
def dependent(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.extra.cuda.gdc_wait()
    v = tl.load(x + i)
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(out + i, v)


# --- with a planted fault each ---


@triton.jit
def no_mask(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i)  # wrong
    tl.store(out + i, v, mask=i < n)


@triton.jit
def mask_too_wide(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n)
    tl.store(out + i, v, mask=i <= n)  # wrong


@triton.jit
def over_the_neighbour(x, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=0)
    inside = tl.program_id(0) * n + i < tl.num_programs(0) * n
    tl.store(out + tl.program_id(0) * n + i, v, mask=inside)  # wrong


@triton.jit
def reads_the_neighbour(x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i + 1, mask=i + 1 < n, other=0)
    tl.store(x + i, v + 1, mask=i < n)  # wrong


@triton.jit
def overflow(x, out, stride):
    big = tl.program_id(0) * stride  # wrong
    tl.store(out + tl.program_id(0), tl.load(x) + big)


@triton.jit
def asserts(x, n, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    tl.device_assert(v > 0, "must be positive")  # wrong
    tl.store(x + tl.arange(0, B), v)


@triton.jit
def reads_uninitialised(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(out + i)  # wrong
    tl.store(out + i, v + tl.load(x + i))


@triton.autotune([triton.Config({"B": 64}), triton.Config({"B": 128})], key=["n"])
@triton.jit
def tuned_add(x, y, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


@triton.jit
def branches_after_a_return(x, y, n, B: tl.constexpr):
    """Both branches have values of the same name in Triton's code."""
    if tl.program_id(0) > 0:
        return
    i = tl.arange(0, B)
    if n > 0:
        at = x + i
        tl.store(at, tl.load(at, mask=i < n) + 1, mask=i < n)
    if n > 1:
        at = y + i
        tl.store(at, tl.load(at, mask=i < n) * 2, mask=i < n)


@triton.jit
def tiles(x, out, m, n, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [m, n], [n, 1], [B, B])
    target = tl.make_tensor_descriptor(out, [m, n], [n, 1], [B, B])
    column = tl.program_id(0) * B
    for row in range(0, m, B):
        target.store([row, column], source.load([row, column]) * 2)


@triton.jit
def tiles_from_the_host(x, total, rows, out, B: tl.constexpr):
    total.atomic_add([0, 0], x.load([0, 4]) + x.shape[0])
    i = tl.arange(0, B)
    tl.store(out + i[:, None] * B + i[None, :], rows.gather(B - 1 - i, 3))


@triton.jit
def beyond_into_another(x, y, out, distance, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(y + i) + tl.load(x + distance + i))  # wrong


@triton.jit
def gate(packed, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    value = tl.load(packed + i, mask=i < n)
    tl.store(out + i, value * tl.load(packed + n + i, mask=i < n), mask=i < n)


@triton.jit
def prints(x, B: tl.constexpr):
    tl.device_print("x is", tl.load(x + tl.arange(0, B)))


@triton.jit
def load_inside(at):
    return tl.load(at, boundary_check=(0, 1), padding_option="zero")


@triton.jit
def product_by_block_pointers(a, b, out, m, n, k, CHECKED: tl.constexpr, B: tl.constexpr):
    first, second = tl.program_id(0) * B, tl.program_id(1) * B
    of_a = tl.make_block_ptr(a, (m, k), (k, 1), (first, 0), (B, B), (1, 0))
    of_b = tl.make_block_ptr(b, (k, n), (n, 1), (0, second), (B, B), (1, 0))
    total = tl.zeros((B, B), tl.float32)
    for _ in range(0, k, B):
        total += tl.dot(load_inside(of_a), load_inside(of_b), input_precision="ieee")
        of_a = tl.advance(of_a, (0, B))
        of_b = tl.advance(of_b, (B, 0))
    tl.store(tl.make_block_ptr(out, (m, n), (n, 1), (first, second), (B, B), (1, 0)), total, boundary_check=CHECKED)


@triton.jit
def loop_in_a_branch_with_a_return(x, out, n, B: tl.constexpr):
    """The block after the branch is reached past the loop of the other, whose carried value is a tensor."""
    i, row = tl.arange(0, B), tl.program_id(0)
    if row < 2:
        total = tl.zeros((B,), tl.float32)
        for k in range(row, n):
            total += tl.load(x + k * B + i)
        tl.store(out + row * B + i, total)
    else:
        if n <= row:
            return
        steps = 0
        while steps < row:
            steps += 1
        tl.store(out + row * B + i, tl.load(x + row * B + i) * steps)
