"""The kernels for clusters, each launched with its arguments: its result, and the right one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

import opwright as ow
from tests.kernelsim.cuda.test_warpgroups import COMMON, wgmma

__all__ = ["ASYNC", "GROUPS", "LAUNCHES", "LIBCU", "MATMUL", "all_reductions", "reductions_text"]

_FOLDER = Path(__file__).parent / "kernels"
GROUPS = (_FOLDER / "clusters.cu").read_text()
ASYNC = (_FOLDER / "clusters_async.cu").read_text()
LIBCU = (_FOLDER / "libcu_ptx.cu").read_text()
# 256 x 128 results of two blocks, each of which multiplies its rows of a by all of b: each copies its own tile of a and
# one half of b's to both. A stage is given back to both blocks.
MATMUL = (
    COMMON
    + """
__device__ void load(const CUtensorMap* map, void* to, int column, int row, uint64_t* bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(shared_address(bar)) : "memory");
}
__device__ void load_both(const CUtensorMap* map, void* to, int column, int row, uint64_t* bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
               " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row),
               "r"(shared_address(bar)), "h"((uint16_t)3) : "memory");
}
__device__ void give_back(uint64_t* bar, uint32_t block) {
  asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
               " mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(bar)), "r"(block) : "memory");
}
__device__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int add) { WGMMA }
__global__ void __cluster_dims__(2) __launch_bounds__(288) matmul(
    const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map, float* c, int k) {
  extern __shared__ __align__(1024) uint8_t tiles[];
  __shared__ uint64_t full[2], empty[2];
  constexpr int bytes = 128 * 64 * 2;
  uint32_t block;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(block));
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; s++) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[s])) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 4;" ::"r"(shared_address(&empty[s])) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (threadIdx.x >= 256) {
    for (int step = 0; threadIdx.x == 256 && step < k / 64; step++) {
      const int s = step % 2;
      wait(&empty[s], (step / 2 & 1) ^ 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&full[s])),
                   "r"(2 * bytes) : "memory");
      load(&a_map, tiles + s * 2 * bytes, step * 64, block * 128, &full[s]);
      load_both(&b_map, tiles + s * 2 * bytes + bytes + block * bytes / 2, step * 64, block * 64, &full[s]);
    }
  } else {
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
      if (threadIdx.x % 128 < 2) give_back(&empty[s], threadIdx.x % 128);
    }
    for (int i = 0; i < 64; i++) {
      const int row = group * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      c[(block * 128 + row) * 128 + column] = d[i];
    }
  }
  asm volatile("barrier.cluster.arrive;" ::: "memory");
  asm volatile("barrier.cluster.wait;" ::: "memory");
}
""".replace("WGMMA", wgmma("bf16", 128, 16))
)
Result = tuple[torch.Tensor, torch.Tensor]


def _reversed(text: str, device: str) -> Result:
    x = torch.arange(256.0, device=device)
    y = torch.zeros_like(x)
    ow.cuda_module(text)["reversed"][4, 64, 0, 2](x, y)
    return y, x.view(2, 2, 64).flip(1, 2).flatten()


def _histogram(text: str, device: str) -> Result:
    values = torch.randint(0, 96, (1000,), dtype=torch.int32, device=device)
    bins = torch.zeros(96, dtype=torch.int32, device=device)
    ow.cuda_module(text)["histogram"][6, 64, 32 * 4, 3](values, bins, 1000, 32)
    return bins, torch.bincount(values, minlength=96).int()


def _row_sums(text: str, device: str) -> Result:
    x = torch.randint(-9, 9, (3, 500), device=device).float()
    sums = torch.zeros(3, device=device)
    ow.cuda_module(text)["row_sums"][(8, 3), 32, 0, (8, 1)](x, sums, 500)
    return sums, x.sum(1)


def _places(text: str, device: str) -> Result:
    out = torch.zeros(4 * 6 * 2 * 8, 16, dtype=torch.int32, device=device)
    ow.cuda_module(text)["places"][(4, 6, 2), 8](out)
    wanted = [
        [
            x % 2 + 2 * (y % 2), 4, x % 2, y % 2, 0, 2, 2, 1, x % 2 * 8 + i, y % 2, 16, 2,
            (x % 2 + 2 * (y % 2)) * 8 + i, 32, x // 2, 3,
        ]
        for _ in range(2) for y in range(6) for x in range(4) for i in range(8)
    ]  # fmt: skip
    return out, torch.tensor(wanted, dtype=torch.int32, device=device)


def _ring(text: str, device: str) -> Result:
    x = torch.arange(256.0, device=device)
    y = torch.zeros_like(x)
    ow.cuda_module(text)["ring"][8, 32, 0, 4](x, y, 3)
    return y, x.view(2, 4, 32).roll(3, 1).flatten() + 3


def _split(text: str, device: str) -> Result:
    x = torch.arange(192.0, device=device)
    y = torch.zeros_like(x)
    ow.cuda_module(text)["split"][6, 32, 0, 3](x, y)
    rows = x.view(2, 3, 32)
    return y, (2 * rows.flip(2) + rows.roll(-1, 1)).flatten()


def _through_global_memory(text: str, device: str) -> Result:
    x = torch.arange(256.0, device=device)
    wanted = x.view(4, 64).roll(-3, 0).flatten() + 3
    ow.cuda_module(text)["through_global_memory<4>"][4, 64](x)
    return x, wanted


def _handed_on(text: str, device: str) -> Result:
    x = torch.arange(128.0, device=device)
    y = torch.zeros_like(x)
    ow.cuda_module(text)["handed_on"][2, 64, 0, (2, 1, 1)](x, y)
    other = torch.tensor([1.0, 0.0], device=device).repeat_interleave(64)
    return y, x.view(2, 32, 2).flip(0, 2).flatten() + other + 2


def _flags(text: str, device: str) -> Result:
    y = torch.zeros(3, dtype=torch.int32, device=device)
    ow.cuda_module(text)["flags"][6, 64](y)
    return y, torch.full_like(y, 7)


def _handshake(text: str, device: str) -> Result:
    x = torch.arange(320.0, device=device).view(10, 32)
    y = torch.zeros_like(x)
    ow.cuda_module(text)["handshake"][2, 32](x, y, 10)
    return y, x.flip(1)


def _stores(text: str, device: str) -> Result:
    x = torch.arange(3 * 32 * 4, dtype=torch.int32, device=device).view(3, 32, 4)
    y = torch.zeros_like(x)
    ow.cuda_module(text)["stores"][3, 32, 0, 3](x, y)
    return y, x.roll(1, 0).flip(1)


def _sends(text: str, device: str) -> Result:
    x = torch.arange(256.0, device=device).view(4, 64)
    y = torch.zeros_like(x)
    ow.cuda_module(text)["sends"][4, 64, 0, 4](x, y)
    return y, x.roll(1, 0).flip(1)


def _multicast(text: str, device: str) -> Result:
    x = torch.arange(128.0, device=device)
    y = torch.zeros(4, 128, device=device)
    ow.cuda_module(text)["multicast"][4, 32, 0, 4](x, y)
    return y, x.expand(4, 128)


def _reductions(text: str, device: str) -> Result:
    x = torch.randint(-99, 99, (4, 64), dtype=torch.int32, device=device)
    y, z = torch.zeros(64, dtype=torch.int32, device=device), torch.ones(64, device=device)
    ow.cuda_module(text)["reductions"][4, 64, 0, 4](x, y, z)
    wanted = x.sum(0)
    return torch.stack([y.float(), z]), torch.stack([wanted.float(), 1 + wanted / 2])


def _atomics(text: str, device: str) -> Result:
    y = torch.zeros(64, 3, dtype=torch.int32, device=device)
    ow.cuda_module(text)["atomics"][2, 32, 0, 2](y)
    return y, torch.tensor([1, 64, 63], dtype=torch.int32, device=device).expand(64, 3)


def _counts(text: str, device: str) -> Result:
    y = torch.zeros(2, 32, dtype=torch.int32, device=device)
    ow.cuda_module(text)["counts"][2, 32, 0, 2](y)
    return y, torch.tensor([[992], [1056]], dtype=torch.int32, device=device).expand(2, 32)


def _boxes(text: str, device: str) -> Result:
    x = torch.arange(32 * 64, dtype=torch.int16, device=device).view(32, 64)
    y = torch.zeros(4, 2, 8, 64, dtype=torch.int16, device=device)
    ow.cuda_module(text)["boxes"][4, 64, 0, 2](ow.tensor_map(x.view(torch.float16), (8, 64)), y)
    return y, x.view(2, 1, 2, 8, 64).expand(2, 2, 2, 8, 64).reshape(4, 2, 8, 64)


def _added(text: str, device: str) -> Result:
    sums, largest = (torch.full((10, 36), 9, dtype=torch.int32, device=device) for _ in range(2))
    tile = torch.arange(256, dtype=torch.int32, device=device).view(8, 32)
    wanted_sums, wanted_largest = sums.clone(), largest.clone()
    wanted_sums[4:, 8:] += 3 * tile[:6, :28] + 3
    wanted_largest[:8, :32] = torch.maximum(wanted_largest[:8, :32], tile + 2)
    ow.cuda_module(text)["added"][3, 64](ow.tensor_map(sums, (8, 32)), ow.tensor_map(largest, (8, 32)))
    return torch.stack([sums, largest]), torch.stack([wanted_sums, wanted_largest])


def _flag(text: str, device: str) -> Result:
    x = torch.arange(32, dtype=torch.int32, device=device)
    y = torch.zeros_like(x)
    ow.cuda_module(text)["flag"][2, 32, 0, 2](x, y)
    return y, x.flip(0)


def _passed(text: str, device: str) -> Result:
    x = torch.randint(-99, 99, (4, 128), dtype=torch.int32, device=device)
    y, sums = torch.zeros_like(x), torch.zeros(128, dtype=torch.int32, device=device)
    ow.cuda_module(text)["passed"][4, 32, 0, 2](x, y, sums)
    pairs = x.view(2, 2, 128)
    added = torch.arange(32, dtype=torch.int32, device=device).repeat(4) + 496
    wanted = 2 * pairs.flip(1) + pairs.sum(1, keepdim=True) + added
    wanted[:, 0] += 1  # the rank of the other block
    return torch.cat([y.flatten(), sums]), torch.cat([wanted.flatten(), 2 * x.sum(0)]).int()


def _matmul(text: str, device: str) -> Result:
    generator, k = torch.Generator().manual_seed(0), 320
    a, b = ((torch.randint(-8, 9, (n, k), generator=generator).bfloat16() / 4).to(device) for n in (256, 128))
    c = torch.zeros(256, 128, device=device)
    maps = [ow.tensor_map(t, (n, 64), swizzle=128) for t, n in ((a, 128), (b, 64))]
    ow.cuda_module(text)["matmul"][2, 288, 4 * 128 * 64 * 2](*maps, c, k)
    return c, torch.matmul(a.float(), b.float().T)


_BITS = ("u32", "s32", "u64", "s64")
_DTYPES = {
    "u32": torch.int32, "s32": torch.int32, "u64": torch.int64, "s64": torch.int64, "b32": torch.int32,
    "b64": torch.int64, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
}  # fmt: skip
_REDUCED = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"), "min": (*_BITS, "f16", "bf16"),
    "max": (*_BITS, "f16", "bf16"), "inc": ("u32",), "dec": ("u32",), "and": ("b32", "b64"), "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}  # fmt: skip
_REDUCTIONS = [(operation, kind) for operation, kinds in _REDUCED.items() for kind in kinds]


def reductions_text() -> str:
    """A kernel that combines rows of 64 bytes of x with those of y, by each reduction of PTX in global memory."""
    copies = "\n".join(
        f'  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}'
        f'{".noftz" if operation == "add" and "f16" in kind else ""}.{kind} [%0], [%1], 64;"'
        f' ::"l"(y + {row} * 64), "r"(at + {row} * 64) : "memory");'
        for row, (operation, kind) in enumerate(_REDUCTIONS)
    )
    return f"""
    __global__ void all(const char* x, char* y) {{
      __shared__ alignas(16) char rows[{len(_REDUCTIONS) * 64}];
      for (int i = threadIdx.x; i < sizeof(rows); i += blockDim.x) rows[i] = x[i];
      asm volatile("fence.proxy.async;" ::: "memory");
      __syncthreads();
      if (threadIdx.x) return;
      const unsigned at = (unsigned)__cvta_generic_to_shared(rows);
      {copies}
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }}
    """


def _combined(operation: str, kind: str, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    if operation == "inc":
        return torch.where(old >= new, 0, old + 1)
    if operation == "dec":
        return torch.where((old == 0) | (old > new), new, old - 1)
    functions = {
        "add": torch.add, "min": torch.minimum, "max": torch.maximum, "and": torch.bitwise_and,
        "or": torch.bitwise_or, "xor": torch.bitwise_xor,
    }  # fmt: skip
    return functions[operation](old, new)


def all_reductions(device: str) -> Result:
    generator = torch.Generator().manual_seed(0)
    x, y, wanted = [], [], []
    for operation, kind in _REDUCTIONS:
        low = 0 if kind.startswith("u") else -99
        new, old = (
            torch.randint(low, 99, (64 // _DTYPES[kind].itemsize,), generator=generator).to(_DTYPES[kind])
            for _ in range(2)
        )
        x.append(new.view(torch.int8))
        y.append(old.view(torch.int8))
        wanted.append(_combined(operation, kind, new, old).view(torch.int8))
    source, target = torch.cat(x).to(device), torch.cat(y).to(device)
    ow.cuda_module(reductions_text())["all"][1, 64](source, target)
    return target, torch.cat(wanted).to(device)


# By kernel: the text that has it, and its launch.
LAUNCHES: dict[str, tuple[str, Callable[[str, str], Result]]] = {
    "reversed": (GROUPS, _reversed), "histogram": (GROUPS, _histogram), "row_sums": (GROUPS, _row_sums),
    "places": (GROUPS, _places), "ring": (GROUPS, _ring), "split": (GROUPS, _split),
    "through_global_memory": (GROUPS, _through_global_memory), "handed_on": (GROUPS, _handed_on),
    "flags": (GROUPS, _flags),
    "handshake": (ASYNC, _handshake), "stores": (ASYNC, _stores), "sends": (ASYNC, _sends),
    "multicast": (ASYNC, _multicast), "reductions": (ASYNC, _reductions), "atomics": (ASYNC, _atomics),
    "counts": (ASYNC, _counts), "boxes": (ASYNC, _boxes),
    "matmul": (MATMUL, _matmul), "added": (ASYNC, _added), "flag": (ASYNC, _flag), "passed": (LIBCU, _passed),
}  # fmt: skip
