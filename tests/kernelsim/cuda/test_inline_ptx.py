"""Inline PTX in the simulator: arithmetic, memory, matrices by a warp, asynchronous copies; and what is wrong in it."""

from __future__ import annotations

import pytest
import torch

import kernelsim

pytestmark = pytest.mark.compiler


# Statements with the operands a, b (unsigned), f (float) and their result out (unsigned).
SCALARS = {
    "add": ('asm("add.u32 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));', 0x12345678 + 0x0F0F0F0F),
    "lop3": ('asm("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(out) : "r"(a), "r"(b), "r"(5u));',
             0x12345678 ^ 0x0F0F0F0F ^ 5),
    "prmt": ('asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(out) : "r"(a), "r"(b));', 0x0F0F5678),
    "bfe": ('asm("bfe.u32 %0, %1, 8, 12;" : "=r"(out) : "r"(a));', 0x456),
    "bfe signed": ('asm("bfe.s32 %0, %1, 4, 4;" : "=r"(out) : "r"(0xf0u));', 0xFFFFFFFF),
    "mad": ('asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(3), "r"(1));', 0x12345678 * 3 + 1),
    "predicate": (
        'asm("{\\n .reg .pred p;\\n setp.ne.u32 p, %1, 0;\\n @p mov.u32 %0, 7;\\n @!p mov.u32 %0, 9;\\n}" : "=r"(out)'
        ' : "r"(b & 1u));', 7),
    "select": ('asm("{ .reg .pred p; setp.lt.s32 p, %1, 0; selp.b32 %0, 1, 2, p; }" : "=r"(out) : "r"(-1));', 1),
    "wide": ('unsigned long long w; asm("mul.wide.u32 %0, %1, %2;" : "=l"(w) : "r"(a), "r"(b)); out = w >> 32;',
             0x12345678 * 0x0F0F0F0F >> 32),
    "unpack": ('unsigned short h, l; asm("mov.b32 {%0, %1}, %2;" : "=h"(l), "=h"(h) : "r"(a)); out = h * 1u;', 0x1234),
    "in and out": ('out = a; asm("{ xor.b32 %0, %0, %1; }" : "+r"(out) : "r"(b));', 0x12345678 ^ 0x0F0F0F0F),
    "no instruction": ('out = a; asm volatile("" : "+r"(out) :: "memory");', 0x12345678),
    "names": ('asm("sub.u32 %[d], %[x], %[y];" : [d] "=r"(out) : [x] "r"(a), [y] "r"(b));', 0x12345678 - 0x0F0F0F0F),
    "half": ('unsigned short h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); out = h;', 0x4100),
    "two halves": ('asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(f), "f"(1.0f));', 0x41003C00),
    "tf32": ('asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(1.00048828125f));', 0x3F802000),
    "rounded": ('int i; asm("cvt.rni.s32.f32 %0, %1;" : "=r"(i) : "f"(f)); out = i;', 2),
    "root": ('float r; asm("sqrt.rn.f32 %0, %1;" : "=f"(r) : "f"(6.25f)); out = __float_as_uint(r);', 0x40200000),
    "lane": ('asm("mov.u32 %0, %%laneid;" : "=r"(out)); out += threadIdx.x == 0 ? 100 : 0;', 100),
    "load": ('asm volatile("ld.global.nc.u32 %0, [%1 + 4];" : "=r"(out) : "l"(x));', 22),
    "vectors": ('unsigned p, q; asm("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(p), "=r"(q) : "l"(x));'
                ' asm volatile("st.global.v2.b32 [%0], {%1, %2};" :: "l"(x), "r"(q), "r"(p)); out = x[0] + p;', 33),
    "volatile vectors": (
        'unsigned p, q; asm volatile("ld.volatile.global.v2.b32 {%0, %1}, [%2];" : "=r"(p), "=r"(q) : "l"(x));'
        ' asm volatile("st.volatile.global.v2.b32 [%0], {%1, %2};" :: "l"(x), "r"(q), "r"(p)); out = x[0] + p;', 33),
    "red": ('asm volatile("red.global.add.u32 [%0], %1;" :: "l"(x), "r"(5)); out = x[0];', 16),
}  # fmt: skip


@pytest.mark.parametrize("name", ["all in one"])
def test_instructions_give_what_the_isa_says(name: str) -> None:
    bodies = "\n".join(
        f"__device__ unsigned f{n}(unsigned* x) {{ unsigned a = 0x12345678, b = 0x0f0f0f0f, out = 0; float f = 2.5f;"
        f" {statement} return out; }}"
        for n, (statement, _) in enumerate(SCALARS.values())
    )
    calls = "\n".join(f"  out[{n}] = f{n}(x + {2 * n});" for n in range(len(SCALARS)))
    kernels = kernelsim.cuda(f"{bodies}\n__global__ void k(unsigned* x, unsigned* out) {{\n{calls}\n}}\n")
    out = torch.zeros(len(SCALARS), dtype=torch.int32)
    kernels["k"][1, 1](torch.tensor([11, 22] * len(SCALARS), dtype=torch.int32), out)
    wanted = [value % 2**32 for _, value in SCALARS.values()]
    assert dict(zip(SCALARS, (v % 2**32 for v in out.tolist()), strict=True)) == dict(zip(SCALARS, wanted, strict=True))


MMA = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define LDMATRIX_X4(r, p) asm volatile( \\
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\\n" \\
    : "=r"((r)[0]), "=r"((r)[1]), "=r"((r)[2]), "=r"((r)[3]) : "r"(p))
#define LDMATRIX_X2_T(r, p) asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\\n" \\
                                         : "=r"((r)[0]), "=r"((r)[1]) : "r"(p))
template <class T> __global__ void product(const T* a, const T* b, float* c) {
  __shared__ __align__(16) T x[16][16 + 8];
  __shared__ __align__(16) T y[16][8];
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) x[i / 16][i % 16] = a[i];
  for (int i = lane; i < 128; i += 32) y[i / 8][i % 8] = b[i];
  __syncthreads();
  unsigned ra[4], rb[2];
  float d[4] = {1, 1, 1, 1};
  LDMATRIX_X4(ra, (unsigned)__cvta_generic_to_shared(&x[lane % 16][lane / 16 * 8]));
  LDMATRIX_X2_T(rb, (unsigned)__cvta_generic_to_shared(&y[lane % 16][0]));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.KIND.KIND.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
  for (int i = 0; i < 4; i++) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}
"""


@pytest.mark.parametrize(
    ("cpp", "kind", "dtype"), [("half", "f16", torch.float16), ("nv_bfloat16", "bf16", torch.bfloat16)]
)
def test_a_product_of_fragments_that_ldmatrix_loads(cpp: str, kind: str, dtype: torch.dtype) -> None:
    a, b, c = torch.randn(16, 16).to(dtype), torch.randn(16, 8).to(dtype), torch.zeros(16, 8)
    kernelsim.cuda(MMA.replace("KIND", kind))[f"product<{cpp}>"][1, 32](a, b, c)
    torch.testing.assert_close(c, (a.double() @ b.double() + 1).float())


def test_a_wrong_layout_gives_a_wrong_product() -> None:
    a, b, c = torch.randn(16, 16).half(), torch.randn(16, 8).half(), torch.zeros(16, 8)
    wrong = MMA.replace("KIND", "f16").replace('"r"(ra[1]), "r"(ra[2])', '"r"(ra[2]), "r"(ra[1])')
    kernelsim.cuda(wrong)["product<half>"][1, 32](a, b, c)
    assert not torch.allclose(c, (a.double() @ b.double() + 1).float(), atol=1e-2)


STMATRIX = """
__global__ void copy(const unsigned short* from, unsigned short* to, int offset) {
  __shared__ __align__(16) unsigned short x[8 * COUNT][8], y[8 * COUNT][8 + 8];
  const int lane = threadIdx.x;
  for (int i = lane; i < 64 * COUNT; i += 32) x[i / 8][i % 8] = from[i];
  __syncthreads();
  unsigned r[COUNT], row = lane % (8 * COUNT);
  asm volatile("ldmatrix.sync.aligned.m8n8.xCOUNT.shared.b16 {OUTPUTS}, [%COUNT];"
               : REGISTERS_OUT : "r"((unsigned)__cvta_generic_to_shared(x[row])));
  asm volatile("stmatrix.sync.aligned.m8n8.xCOUNT.TRANSshared.b16 [%0], {INPUTS};"
               :: "r"((unsigned)__cvta_generic_to_shared(&y[row][offset])), REGISTERS_IN : "memory");
  __syncthreads();
  for (int i = lane; i < 64 * COUNT; i += 32) to[i] = y[i / 8][i % 8];
}
"""


def stored(count: int, transposed: bool, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices before and after they went through registers."""
    registers = range(count)
    text = STMATRIX.replace("TRANS", "trans." if transposed else "").replace("[%COUNT]", f"[%{count}]")
    text = text.replace("OUTPUTS", ", ".join(f"%{n}" for n in registers))
    text = text.replace("INPUTS", ", ".join(f"%{n + 1}" for n in registers))
    text = text.replace("REGISTERS_OUT", ", ".join(f'"=r"(r[{n}])' for n in registers))
    text = text.replace("REGISTERS_IN", ", ".join(f'"r"(r[{n}])' for n in registers)).replace("COUNT", str(count))
    before = torch.arange(64 * count, dtype=torch.int16).reshape(count, 8, 8)
    after = torch.zeros_like(before)
    kernelsim.cuda(text)["copy"][1, 32](before, after, offset)
    return before, after


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_that_stmatrix_stores(count: int, transposed: bool) -> None:
    before, after = stored(count, transposed)
    assert torch.equal(after, before.mT if transposed else before)


def test_a_row_of_stmatrix_that_is_not_aligned() -> None:
    with pytest.raises(kernelsim.FindingError, match="a row of ldmatrix or stmatrix"):
        stored(4, transposed=False, offset=4)


def test_tf32_half_and_integer_products() -> None:
    text = """
    __global__ void tf32(const float* a, const float* b, float* c) {  // 16 x 8, 8 x 8
      int g = threadIdx.x / 4, t = threadIdx.x % 4;
      unsigned r[4], s[2];
      for (int i = 0; i < 4; i++) r[i] = __float_as_uint(a[(g + i % 2 * 8) * 8 + t + i / 2 * 4]);
      for (int i = 0; i < 2; i++) s[i] = __float_as_uint(b[(t + i * 4) * 8 + g]);
      float d[4];
      asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
          : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
          : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(s[0]), "r"(s[1]), "f"(0.0f));
      for (int i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = d[i];
    }
    __global__ void s8(const int* a, const int* b, int* c) {  // 16 x 32 and 8 x 32 (columns), as bytes
      int g = threadIdx.x / 4, t = threadIdx.x % 4;
      int d[4] = {};
      asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
          : "r"(a[g * 8 + t]), "r"(a[(g + 8) * 8 + t]), "r"(a[g * 8 + t + 4]), "r"(a[(g + 8) * 8 + t + 4]),
            "r"(b[g * 8 + t]), "r"(b[g * 8 + t + 4]));
      for (int i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = d[i];
    }
    """
    kernels = kernelsim.cuda(text)
    a, b, c = torch.randint(-8, 8, (16, 8)).float() / 4, torch.randint(-8, 8, (8, 8)).float(), torch.zeros(16, 8)
    kernels["tf32"][1, 32](a, b, c)
    assert torch.equal(c, a @ b)
    p, q = (torch.randint(-128, 128, (rows, 32), dtype=torch.int8) for rows in (16, 8))
    r = torch.zeros(16, 8, dtype=torch.int32)
    kernels["s8"][1, 32](p.view(torch.int32), q.view(torch.int32), r)
    assert torch.equal(r, p.int() @ q.int().T)


COPIES = """
__global__ void reversed(const float* x, float* y, int n) {
  __shared__ __align__(16) float tile[256];
  int i = threadIdx.x * 4;
  unsigned to = (unsigned)__cvta_generic_to_shared(&tile[i]);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;\\n" :: "r"(to), "l"(&x[i]));
  asm volatile("cp.async.commit_group;\\n" ::);
  asm volatile("cp.async.wait_group %0;\\n" :: "n"(0));
  __syncthreads();
  for (int k = 0; k < 4; k++) y[i + k] = tile[255 - i - k];
}
"""


def run(text: str, kernel: str = "reversed") -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.arange(256.0), torch.zeros(256)
    kernelsim.cuda(text)[kernel][1, 64](x, y, 256)
    return x, y


def test_an_asynchronous_copy_arrives_with_its_wait() -> None:
    x, y = run(COPIES)
    assert torch.equal(y, x.flip(0))


WRONG = {
    "no wait": ('  asm volatile("cp.async.wait_group %0;\\n" :: "n"(0));\n', "\n",
                "uninitialised: reads 4 bytes at byte .* of shared variable 'tile' .*asynchronous copy"),
    "a wait for too few": ('"n"(0)', '"n"(1)', "which an asynchronous copy fills that no thread has waited for"),
    "no barrier": ("  __syncthreads();\n", "\n", r"asynchronous copy fills|race: "),
    "misaligned": ('"l"(&x[i]))', '"l"(&x[i] + 1))', "misaligned: an asynchronous copy through address"),
    "past the end": ('"l"(&x[i]))', '"l"(&x[i] + 4))', "out-of-bounds: reads 16 bytes just past the end of arg"),
    "beyond the tile": ("&tile[i])", "&tile[i] + 4)", "writes 16 bytes just past the end of shared variable 'tile'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_asynchronous_copy_is_found_at_its_line(name: str) -> None:
    before, after, message = WRONG[name]
    assert before in COPIES
    with pytest.raises(kernelsim.FindingError, match=message) as caught:
        run(COPIES.replace(before, after))
    assert "asm volatile" in caught.value.findings[0].source_line or "tile[255" in caught.value.findings[0].source_line


def test_a_buffer_that_is_copied_into_while_it_is_read_is_a_race() -> None:
    wrong = COPIES.replace(
        "= tile[255 - i - k];\n",
        '= tile[255 - i - k];\n  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(&x[i]));\n',
    )
    with pytest.raises(kernelsim.FindingError, match="race: "):
        run(wrong)


def test_what_is_not_translated_is_refused_by_name_and_line_where_it_is_used() -> None:
    text = """
    #define BULK(p) asm volatile("tcgen05.alloc.global;")
    __device__ int odd(int v) {
      asm("vabsdiff4.u32.u32.u32.add %0, %1, %1, %1;" : "=r"(v) : "r"(v));
      return v;
    }
    __global__ void k(int* x) { x[0] = odd(x[0]); }
    """
    with pytest.raises(kernelsim.RefusedError, match=r":3: inline PTX vabsdiff4\.u32\.u32\.u32\.add: this instruction"):
        kernelsim.cuda(text)["k"][1, 1](torch.zeros(1, dtype=torch.int32))
    used = text.replace("odd(x[0])", "1; BULK(x)").replace("vabsdiff4.u32.u32.u32.add %0, %1, %1, %1", "mov.u32 %0, %1")
    with pytest.raises(kernelsim.RefusedError, match=r":1: inline PTX tcgen05\.alloc\.global"):
        kernelsim.cuda(used)["k"][1, 1](torch.zeros(1, dtype=torch.int32))
    unused = used.replace("; BULK(x)", "")
    out = torch.zeros(1, dtype=torch.int32)
    kernelsim.cuda(unused)["k"][1, 1](out)
    assert out.item() == 1


CONDITIONS = r"""
__global__ void k(int* out) {
  int v = 1, w;
  asm volatile(
      "{.reg .u32 t;\n"
#if __CUDA_ARCH__ >= 800 && \
    __CUDA_ARCH__ < 10000
#if defined(NEVER)
      "add.u32 t, %1, 9;\n"
#else
      "add.u32 t, %1, 2;\n"
#endif
#elif defined(NEVER)
      "add.u32 t, %1, 7;\n"
#else
      "add.u32 t, %1, 8;\n"
#endif
      "mov.u32 %0, t;}\n"
      : "=r"(w)
      : "r"(v));
  asm("add.u32 %0, %0, 4;"
#ifdef NEVER
      "add.u32 %0, %0, 9;"
#endif
      : "+r"(w)
      :
      : "memory");
  out[0] = w;
  out[1] = __LINE__;
}
"""


@pytest.mark.parametrize(("options", "value"), [((), 7), (("-arch=sm_70",), 13), (("-arch=sm_70", "-DNEVER"), 21)])
def test_conditions_of_the_preprocessor_in_a_statement(options: tuple[str, ...], value: int) -> None:
    out = torch.zeros(2, dtype=torch.int32)
    kernelsim.cuda(CONDITIONS, flags=list(options))["k"][1, 1](out)
    assert out.tolist() == [value, CONDITIONS[: CONDITIONS.index("__LINE__")].count("\n")]


def test_an_operand_may_be_the_address_of_an_element_of_a_restrict_pointer() -> None:
    text = """
    template <class T> __global__ void k(const int* __restrict__ x, T* y) {
      asm volatile("ld.global.u32 %0, [%1];" : "=r"(y[0]) : "l"(&x[threadIdx.x + 1]));
    }
    """
    y = torch.zeros(1, dtype=torch.int32)
    kernelsim.cuda(text)["k<int>"][1, 1](torch.tensor([5, 8], dtype=torch.int32), y)
    assert y.item() == 8
