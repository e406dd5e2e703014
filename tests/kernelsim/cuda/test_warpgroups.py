"""wgmma in the simulator: products of tiles in each layout, and what is wrong with a kernel that uses them."""

from __future__ import annotations

import pytest
import torch

import kernelsim
import opwright as ow
from kernelsim.findings import CudaFinding
from opwright.backends.cuda.nvrtc import available
from opwright.errors import KernelRefusedError, SimulatorError
from opwright.results import Refused
from tests.sampled import quick

pytestmark = pytest.mark.compiler
needs_nvrtc = pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")


def wgmma(kind: str, n: int, k: int, *, a: str = '"l"(a)', more: str = ", 1, 1, 0, 0") -> str:
    """An asm statement with the accumulators d[0] and on, the operand a, the descriptor b and the flag `add`."""
    count = n // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    outputs = ",\n".join(f'"+f"(d[{i}])' for i in range(count))
    sources = a.count('"(') or a.count('"r"') or 1
    given = f"{{{', '.join(f'%{count + i}' for i in range(4))}}}" if sources == 4 else f"%{count}"
    at = count + sources
    return (
        f'asm volatile(\n"{{ .reg .pred p; setp.ne.b32 p, %{at + 1}, 0; wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.'
        f'{kind}.{kind} {{{registers}}}, {given}, %{at}, p{more}; }}"\n: {outputs} : {a}, "l"(b), "r"(add));'
    )


COMMON = """
#include <cuda.h>
#include <cuda_bf16.h>
#include <stdint.h>
__device__ uint32_t shared_address(const void* pointer) { return (uint32_t)__cvta_generic_to_shared(pointer); }
__device__ uint64_t tile(const void* begin, int leading, int stride, uint64_t pattern) {
  const uint64_t at = (shared_address(begin) & 0x3ffff) >> 4;
  return at | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 | pattern << 62;
}
__device__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ void wait_for_all_but() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
__device__ void wait(uint64_t* bar, uint32_t parity) {
  asm volatile("{ .reg .pred P1; LAB_WAIT: mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1; @P1 bra DONE;"
               " bra LAB_WAIT; DONE: }" ::"r"(shared_address(bar)), "r"(parity) : "memory");
}
"""

# 128 x 128 results of two warpgroups, from tiles of 64 columns of a and b that a pipeline of two stages copies.
MATMUL = (
    COMMON
    + """
__device__ void load(const CUtensorMap* map, void* to, int column, int row, uint64_t* bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(shared_address(bar)) : "memory");
}
__device__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int add) { WGMMA }
__global__ void __launch_bounds__(288) matmul(const __grid_constant__ CUtensorMap a_map,
                                              const __grid_constant__ CUtensorMap b_map, float* c, int k) {
  extern __shared__ __align__(1024) uint8_t tiles[];
  __shared__ uint64_t full[2], empty[2];
  constexpr int bytes = 128 * 64 * 2;
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; s++) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[s])) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" ::"r"(shared_address(&empty[s])) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= 256) {
    for (int step = 0; threadIdx.x == 256 && step < k / 64; step++) {
      const int s = step % 2;
      wait(&empty[s], (step / 2 & 1) ^ 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&full[s])),
                   "r"(2 * bytes) : "memory");
      load(&a_map, tiles + s * 2 * bytes, step * 64, 0, &full[s]);
      load(&b_map, tiles + s * 2 * bytes + bytes, step * 64, 0, &full[s]);
    }
    return;
  }
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  float d[64];
  for (int step = 0; step < k / 64; step++) {
    const int s = step % 2;
    wait(&full[s], step / 2 & 1);
    const uint8_t* a = tiles + s * 2 * bytes + group * 64 * 128;
    const uint8_t* b = tiles + s * 2 * bytes + bytes;
    fence();
    for (int i = 0; i < 4; i++) multiply(d, tile(a + 32 * i, 0, 1024, 1), tile(b + 32 * i, 0, 1024, 1), step + i > 0);
    commit();
    wait_for_all_but<0>();
    if (threadIdx.x % 128 == 0) {
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&empty[s])) : "memory");
    }
  }
  for (int i = 0; i < 64; i++) {
    const int row = group * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    c[row * 128 + column] = d[i];
  }
}
""".replace("WGMMA", wgmma("bf16", 128, 16))
)


def matmul(text: str, k: int = 192, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    a, b = ((torch.randint(-8, 9, (128, k), generator=generator).bfloat16() / 4).to(device) for _ in range(2))
    c = torch.zeros(128, 128, device=device)
    maps = [ow.tensor_map(t, (128, 64), swizzle=128) for t in (a, b)]
    ow.cuda_module(text)["matmul"][1, 288, 4 * 128 * 64 * 2](*maps, c, k)
    return c, torch.matmul(a.float(), b.float().T)


@pytest.mark.parametrize("seed", [None, 1])
def test_a_pipelined_product_of_tiles_equals_torchs(seed: int | None) -> None:
    with kernelsim.options(seed=seed):
        c, wanted = matmul(MATMUL)
    assert torch.equal(c, wanted)


def test_the_fast_build_gives_the_same() -> None:
    with kernelsim.options(checked=False):
        c, wanted = matmul(MATMUL)
    assert torch.equal(c, wanted)


@needs_nvrtc
def test_nvrtc_takes_it() -> None:
    assert ow.cuda_module(MATMUL).compile("sm_90a").entries


def test_a_statement_without_an_instruction_is_no_access() -> None:
    """CUTLASS's warpgroup_fence_operand, which only the compiler sees."""
    fenced = '    for (float& one : d) asm volatile("" : "+f"(one)::"memory");\n'
    c, wanted = matmul(MATMUL.replace(WAIT, fenced + WAIT))
    assert torch.equal(c, wanted)


# What is changed in the product; kinds of findings, a line that one of them names, a part of its message.
FENCE, WAIT, COMMIT = "    fence();\n", "    wait_for_all_but<0>();\n", "    commit();\n"
STORE = "c[row * 128 + column] = d[i];"
LOAD_A = "load(&a_map, tiles + s * 2 * bytes, step * 64, 0, &full[s]);"
MULTIPLY = (
    "for (int i = 0; i < 4; i++) multiply(d, tile(a + 32 * i, 0, 1024, 1), tile(b + 32 * i, 0, 1024, 1), step + i > 0);"
)
IN_FLIGHT = "reads an accumulator of a wgmma that the thread has not waited for"
WRONG = {
    "the results are read before the wait": (WAIT, "", "uninitialised", STORE, IN_FLIGHT),
    "the tiles are given back before the wait": (WAIT, "", "race", LOAD_A, "races with a read"),
    "products that no group has": (COMMIT, "", "uninitialised", STORE, IN_FLIGHT),
    "a wait for all groups but one": ("but<0>", "but<1>", "uninitialised", STORE, IN_FLIGHT),
    "no fence at all": (FENCE, "", "race", MULTIPLY, "no wgmma.fence comes before this wgmma"),
    "a register that is written after the fence": (
        FENCE, FENCE + "    d[3] *= step > 0;\n", "race", MULTIPLY, "was written, and no wgmma.fence came after that"),
    "a register that is written before the wait": (
        WAIT, "    d[3] = 0;\n" + WAIT, "race", "d[3] = 0;", "writes an accumulator of a wgmma"),
    "rows that are too far apart": (
        "tile(b + 32 * i, 0, 1024, 1)", "tile(b + 32 * i, 0, 8192, 1)", "out-of-bounds",
        MULTIPLY.replace("tile(b + 32 * i, 0, 1024, 1)", "tile(b + 32 * i, 0, 8192, 1)"),
        "past the end of dynamic shared"),
    "an address that is in no variable": (
        "tile(b + 32 * i, 0, 1024, 1)", "tile(b + 200000, 0, 1024, 1)", "trap",
        MULTIPLY.replace("tile(b + 32 * i, 0, 1024, 1)", "tile(b + 200000, 0, 1024, 1)"), "in no variable in shared"),
    "a warp that leaves out a step": (
        "    fence();", "    if (step == 2 && warp == 3) continue;\n    fence();", "barrier", "wait_for_all_but<0>();",
        "other warps of its warpgroup never issue"),
}  # fmt: skip


@pytest.mark.parametrize("name", quick(WRONG, 0, 1, 4, 7))
def test_a_wrong_product_is_named_with_its_line(name: str) -> None:
    before, after, kind, line, message = WRONG[name]
    assert before in MATMUL
    with pytest.raises(SimulatorError, match=message) as caught:
        matmul(MATMUL.replace(before, after), 320)
    findings = [one for one in caught.value.findings if isinstance(one, CudaFinding)]
    lines = {call for one in findings if one.kind == kind and message in one.message
             for call in (one.source_line, *(caller.source_line for caller in one.callers))}  # fmt: skip
    assert line in lines


# A product of 64 x n results: boxes of both matrices are copied one after another, then multiplied in steps of k.
TILES = (
    COMMON
    + """
__global__ void product(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map, float* c,
                        int n, int a_boxes, int b_boxes, int box_bytes, int box_step, int leading, int stride,
                        int pattern, int steps, int advance) {
  extern __shared__ __align__(1024) uint8_t tiles[];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&bar)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&bar)),
                 "r"((a_boxes + b_boxes) * box_bytes) : "memory");
    for (int i = 0; i < a_boxes + b_boxes; i++) {
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, 0}],"
                   " [%3];" ::"r"(shared_address(tiles + i * box_bytes)), "l"(i < a_boxes ? &a_map : &b_map),
                   "r"((i < a_boxes ? i : i - a_boxes) * box_step), "r"(shared_address(&bar)) : "memory");
    }
  }
  __syncthreads();
  wait(&bar, 0);
  float d[32];
  fence();
  for (int i = 0; i < steps; i++) {
    const uint64_t a = tile(tiles + i * advance, leading, stride, pattern);
    const uint64_t b = tile(tiles + a_boxes * box_bytes + i * advance, leading, stride, pattern);
    const int add = i > 0;
    WGMMA
  }
  commit();
  wait_for_all_but<0>();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = 0; i < 32; i++) {
    c[(warp * 16 + lane / 4 + i / 2 % 2 * 8) * n + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
  }
}
"""
)
# Of each layout: the bytes of its pattern, PTX's number of it, the leading and the stride offset, and how far a step of
# 16 columns goes. Without a pattern, boxes have 8 columns, and a step takes two of them.
BY_K = {128: (1, 0, 1024, 32), 64: (2, 0, 512, 32), 32: (3, 0, 256, 32), 0: (0, 1024, 128, 2048)}


def tiles(dtype: torch.dtype, swizzle: int, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's result, and the right one, of tiles whose rows of k are contiguous."""
    size = dtype.itemsize
    kind = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}[dtype]
    pattern, leading, stride, advance = BY_K[swizzle]
    row_bytes = swizzle or 16
    columns = max(64 // size, swizzle // size)
    boxes, box_bytes = columns * size // row_bytes, 64 * row_bytes
    a, b = ((torch.randint(-8, 9, (64, columns)) / 4).to(dtype).to(device) for _ in range(2))
    c = torch.zeros(64, 64, device=device)
    maps = [ow.tensor_map(t, (64, row_bytes // size), swizzle=swizzle) for t in (a, b)]
    statement = wgmma(kind, 64, 32 // size, more=", 1, 1, 0, 0" if size == 2 else ", 1, 1")
    steps = (columns if swizzle == 0 or boxes == 1 else row_bytes // size) * size // 32
    text = TILES.replace("WGMMA", statement)
    ow.cuda_module(text)["product"][1, 128, 2 * boxes * box_bytes](
        *maps, c, 64, boxes, boxes, box_bytes, row_bytes // size, leading, stride, pattern, steps, advance
    )
    used = steps * 32 // size
    return c, a[:, :used].float() @ b[:, :used].float().T


@pytest.mark.parametrize("swizzle", BY_K)
def test_tiles_of_contiguous_rows_in_each_pattern(swizzle: int) -> None:
    c, wanted = tiles(torch.bfloat16, swizzle)
    assert torch.equal(c, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_products_of_other_types(dtype: torch.dtype) -> None:
    c, wanted = tiles(dtype, 128)
    assert torch.equal(c, wanted)


def with_registers(statement: str, before: str, after: str) -> str:
    """The statement with another type of accumulators: PTX's name, and the constraint."""
    return statement.replace(f".f32.{before}", f".{after}.{before}").replace('"+f"', '"+r"')


def whole_numbers(device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    a, b = (torch.randint(-128, 128, (64, 128), dtype=torch.int8).to(device) for _ in range(2))
    c = torch.zeros(64, 64, dtype=torch.int32, device=device)
    maps = [ow.tensor_map(t, (64, 128), swizzle=128) for t in (a, b)]
    statement = with_registers(wgmma("s8", 64, 32, more=""), "s8", "s32")
    text = TILES.replace("WGMMA", statement).replace("float d[32]", "int d[32]").replace("float* c", "int* c")
    ow.cuda_module(text)["product"][1, 128, 16384](*maps, c, 64, 1, 1, 8192, 128, 0, 1024, 1, 4, 32)
    return c, (a.double() @ b.double().T).int()


def test_products_of_whole_numbers() -> None:
    c, wanted = whole_numbers()
    assert torch.equal(c, wanted)


def tf32(device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    a, b = (torch.randn(64, 32).to(device) for _ in range(2))
    c = torch.zeros(64, 64, device=device)
    maps = [ow.tensor_map(t, (64, 32), swizzle=128) for t in (a, b)]
    text = TILES.replace("WGMMA", wgmma("tf32", 64, 8, more=", 1, 1"))
    ow.cuda_module(text)["product"][1, 128, 16384](*maps, c, 64, 1, 1, 8192, 32, 0, 1024, 1, 4, 32)
    cut = [(t.view(torch.int32) & ~0x1FFF).view(torch.float32).double() for t in (a, b)]  # 10 bits of fraction are left
    return c.double(), cut[0] @ cut[1].T


def test_products_of_tf32_cut_their_operands() -> None:
    c, wanted = tf32()
    torch.testing.assert_close(c, wanted, rtol=0, atol=1e-5)


def by_columns(device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    a, b = ((torch.randint(-8, 9, (32, 64)).bfloat16() / 4).to(device) for _ in range(2))  # of k x m, and k x n
    c = torch.zeros(64, 64, device=device)
    maps = [ow.tensor_map(t, (32, 64), swizzle=128) for t in (a, b)]
    text = TILES.replace("WGMMA", wgmma("bf16", 64, 16, more=", 1, -1, 1, 1"))
    ow.cuda_module(text)["product"][1, 128, 8192](*maps, c, 64, 1, 1, 4096, 64, 4096, 1024, 1, 2, 2048)
    return c, -(a.float().T @ b.float())


def test_tiles_whose_columns_are_contiguous() -> None:
    c, wanted = by_columns()
    assert torch.equal(c, wanted)


@needs_nvrtc
@pytest.mark.parametrize(
    ("kind", "k", "more"), [("bf16", 16, ", 1, 1, 0, 0"), ("e4m3", 32, ", 1, 1"), ("bf16", 16, ", 1, -1, 1, 1")]
)
def test_nvrtc_takes_the_tiles(kind: str, k: int, more: str) -> None:
    text = TILES.replace("WGMMA", wgmma(kind, 64, k, more=more))
    assert ow.cuda_module(text).compile("sm_90a").entries


FROM_REGISTERS = (
    COMMON
    + """
__global__ void product(const uint32_t* x, const __nv_bfloat16* y, float* c) {  // rows of 16; x in pairs
  __shared__ alignas(128) __nv_bfloat16 columns[8 * 16];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  columns[threadIdx.x] = y[threadIdx.x % 64 / 8 * 16 + threadIdx.x / 64 * 8 + threadIdx.x % 8];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  uint32_t a[4];
  for (int i = 0; i < 4; i++) a[i] = x[(warp * 16 + lane / 4 + i % 2 * 8) * 8 + lane % 4 + i / 2 * 4];
  float d[4] = {1, 1, 1, 1};
  const uint64_t b = tile(columns, 128, 0, 0);
  const int add = 1;
  fence();
  WGMMA
  commit();
  wait_for_all_but<0>();
  for (int i = 0; i < 4; i++) c[(warp * 16 + lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}
""".replace("WGMMA", wgmma("bf16", 8, 16, a=", ".join(f'"r"(a[{i}])' for i in range(4)), more=", 1, 1, 0"))
)


def from_registers(text: str, threads: int = 128, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    a, b = ((torch.randint(-8, 9, (rows, 16)).bfloat16() / 4).to(device) for rows in (64, 8))
    c = torch.zeros(64, 8, device=device)
    ow.cuda_module(text)["product"][1, threads](a.view(torch.int32), b, c)
    return c, a.float() @ b.float().T + 1


def test_a_matrix_in_registers() -> None:
    c, wanted = from_registers(FROM_REGISTERS)
    assert torch.equal(c, wanted)


def test_results_of_16_bits() -> None:
    text = with_registers(FROM_REGISTERS, "bf16", "f16").replace(".bf16.bf16", ".f16.f16").replace(
        "float d[4] = {1, 1, 1, 1}", "uint32_t d[2] = {0x3c003c00, 0x3c003c00}").replace(
        "= d[i];", "= __half2float(__ushort_as_half((unsigned short)(d[i / 2] >> i % 2 * 16)));")  # fmt: skip
    registers = '"+r"(d[2]),\n"+r"(d[3])'
    assert registers in text
    text = text.replace(f",\n{registers}", "").replace(
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p", "{%0, %1}, {%2, %3, %4, %5}, %6, p"
    )
    text = text.replace("p, %9, 0;", "p, %7, 0;")
    a, b = (torch.randint(-8, 9, (rows, 16)).half() / 4 for rows in (64, 8))
    c = torch.zeros(64, 8)
    ow.cuda_module(text)["product"][1, 128](a.view(torch.int32), b.view(torch.bfloat16), c)
    assert torch.equal(c, (a.float() @ b.float().T + 1).half().float())


def test_what_threads_wrote_needs_a_fence_before_tensor_cores_read_it() -> None:
    with pytest.raises(SimulatorError, match=r"race: .* there is no fence.proxy.async between them"):
        from_registers(FROM_REGISTERS.replace("fence.proxy.async.shared::cta;", ""))


def test_half_of_a_warpgroup_is_refused() -> None:
    with pytest.raises(SimulatorError, match="needs the four warps of a warpgroup"):
        from_registers(FROM_REGISTERS, 64)


@needs_nvrtc
def test_nvrtc_takes_registers() -> None:
    assert ow.cuda_module(FROM_REGISTERS).compile("sm_90a").entries


def test_a_shape_that_does_not_exist_is_refused() -> None:
    with pytest.raises(KernelRefusedError, match="this shape or these types are not translated"):
        from_registers(FROM_REGISTERS.replace("m64n8k16", "m64n8k8"))
