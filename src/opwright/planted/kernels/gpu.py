"""Kernels for a GPU in CUDA and Triton. Without one, a simulator and Triton's interpreter run them."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.planted.catalogue import Row, correct, planted

__all__ = ["ROWS", "add_up", "scale", "twice"]

_CHECKS = ("values", "memory")
_RIGHT_CHECKS = (*_CHECKS, "grid limits")
_SCALE_CHECKS = (*_CHECKS, "inputs unchanged")


@ow.op("selftest_gpu::scale")
def scale(x: Float32[Tensor, "*n"], a: float) -> Float32[Tensor, "*n"]:
    return a * x


_SCALE = """
__device__ float through(volatile float* scratch, float x) {
  *scratch = x;
  return *scratch;
}
__device__ float set_back(volatile float* x, float a) {
  float was = *x;
  *x = a * was;
  float now = *x;
  *x = was;
  return now;
}
__global__ void scale(const float* x, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (GUARD) out[TO] = VALUE;
}
"""
_SCALE_FAULTS = {
    "CUDA: one thread too many": {"GUARD": "i <= n"},
    "CUDA: no guard": {"GUARD": "true"},
    "CUDA: the last element is left out": {"GUARD": "i < n - 1"},
    "CUDA: it reads the next element": {"VALUE": "a * x[i] + 0 * x[i + 1]"},
    "CUDA: the block's number is left out": {"TO": "threadIdx.x", "VALUE": "a * x[threadIdx.x]"},
    "CUDA: the scalar is cut to an integer": {"VALUE": "(int)a * x[i]"},
    "CUDA: it writes its argument": {"VALUE": "(((float*)x)[i] *= a)"},
    "CUDA: only 65,535 elements": {"GUARD": "i < n && i < 65535"},
    "CUDA: it writes its argument and takes that back": {"VALUE": "set_back((float*)x + i, a)"},
}
_SCALE_RIGHT = {
    "CUDA: as it is": {},
    "CUDA: compared without a sign": {"GUARD": "(unsigned)i < (unsigned)n"},
    "CUDA: the factors in another order": {"VALUE": "x[i] * a"},
    "CUDA: its result serves as scratch memory": {"VALUE": "a * through(out + i, x[i])"},
}
# A GPU counts the warps that come to a barrier, lets a kernel write any argument, and shows nothing of either.
_ONLY_IN_THE_SIMULATOR = frozenset({
    "CUDA: a barrier that some threads pass by", "CUDA: it writes its argument and takes that back",
})  # fmt: skip


def _cuda(name: str, changes: dict[str, str]) -> str:
    text = _SCALE
    for key, default in (("GUARD", "i < n"), ("TO", "i"), ("VALUE", "a * x[i]")):
        text = text.replace(key, changes.get(key, default))
    kernels = ow.cuda_module(text)

    def launch(x: Tensor, a: float) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        kernels["scale"][ow.cdiv(out.numel(), 128), 128](x, out, a, out.numel())
        return out

    scale.cuda(launch, name=name, devices=["cpu"] if name in _ONLY_IN_THE_SIMULATOR else None)
    return name


@ow.op("selftest_gpu::twice")
def twice(x: Float32[Tensor, "m n"]) -> Float32[Tensor, "m n"]:
    return 2 * x


_TWICE = """
template <class I> __global__ void twice(const float* x, float* out, int m, int n, I rows, I columns) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < m * n) out[i] = 2 * x[(i / n) * rows + (i % n) * columns];
}
"""


def _cuda_strided(name: str, kind: str) -> str:
    kernels = ow.cuda_module(_TWICE)

    def launch(x: Tensor) -> Tensor:
        x = x.contiguous() if kind == "int" and max(x.stride()) >= 2**31 else x
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        kernels[f"twice<{kind}>"][ow.cdiv(out.numel(), 128), 128](x, out, *x.shape, *x.stride())
        return out

    twice.cuda(launch, name=name)
    return name


_BLOCKS = """
__global__ void twice(const float* x, float* out, int columns) {
  long row = blockIdx.ROW;
  for (int i = blockIdx.BLOCK * blockDim.x + threadIdx.x; i < columns; i += gridDim.BLOCK * blockDim.x)
    out[row * columns + i] = 2 * x[row * columns + i];
}
"""
# No case has so many columns that they are more blocks than a grid has in y.
_GRID_FAULT = "CUDA: blocks of a row in y of the grid"
_GRIDS: dict[str, tuple[str, Any]] = {
    _GRID_FAULT: ("y", lambda rows, blocks: (rows, blocks)),
    "CUDA: some blocks of a row in y of the grid": ("y", lambda rows, blocks: (rows, min(blocks, 65_535))),
    "CUDA: blocks of a row in x of the grid": ("x", lambda rows, blocks: (blocks, rows)),
}


def _cuda_blocks(name: str) -> str:
    axis, grid = _GRIDS[name]
    kernels = ow.cuda_module(_BLOCKS.replace("BLOCK", axis).replace("ROW", "xy".replace(axis, "")))

    def launch(x: Tensor) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        if x.numel():
            kernels["twice"][grid(len(x), ow.cdiv(x.shape[1], 128)), 128](x, out, x.shape[1])
        return out

    twice.cuda(launch, name=name, when=(lambda x: len(x) <= 65_535) if axis == "x" else None)
    return name


@ow.op("selftest_gpu::add_up")
def add_up(x: Float32[Tensor, "b n"]) -> Float32[Tensor, " b"]:
    return x.sum(1)


_SUM = """
__global__ void add_up(const float* x, float* out, int n) {
  __shared__ float part[128];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += 128) sum += x[(long)blockIdx.x * n + i];
  WRITE
  BARRIER
  for (int step = 64; step > 0; step /= 2) {
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    INNER
  }
  if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
"""
_SUM_FAULTS = {
    "CUDA: no barrier after shared memory is written": {"BARRIER": ""},
    "CUDA: no barrier between steps": {"INNER": ""},
    "CUDA: a barrier that some threads pass by": {"INNER": "if (threadIdx.x < step) __syncthreads();"},
    "CUDA: shared memory that is not written": {"WRITE": "if (threadIdx.x < 64) part[threadIdx.x] = sum;"},
    "CUDA: past shared memory": {"WRITE": "part[threadIdx.x + 1] = sum; part[0] = 0;"},
}
_SUM_RIGHT = {
    "CUDA: a sum in shared memory": {},
    "CUDA: more barriers than needed": {"BARRIER": "__syncthreads(); __syncthreads();"},
}


def _cuda_sum(name: str, changes: dict[str, str]) -> str:
    text = _SUM
    defaults = {"WRITE": "part[threadIdx.x] = sum;", "BARRIER": "__syncthreads();", "INNER": "__syncthreads();"}
    for key, default in defaults.items():
        text = text.replace(key, changes.get(key, default))
    kernels = ow.cuda_module(text)

    def launch(x: Tensor) -> Tensor:
        x = x.contiguous()
        out = x.new_empty(len(x))
        if len(x):
            kernels["add_up"][len(x), 128](x, out, x.shape[1])
        return out

    add_up.cuda(launch, name=name, devices=["cpu"] if name in _ONLY_IN_THE_SIMULATOR else None)
    return name


ROWS: list[Row] = [
    *(planted(scale, _cuda(name, changes), "values", checks=_SCALE_CHECKS) for name, changes in _SCALE_FAULTS.items()),
    *(correct(scale, _cuda(name, changes), checks=_RIGHT_CHECKS) for name, changes in _SCALE_RIGHT.items()),
    planted(twice, _cuda_strided("CUDA: a row or an inner step in 32 bits", "int"), "far rows"),
    correct(twice, _cuda_strided("CUDA: rows and inner steps in 64 bits", "long"), checks=(*_CHECKS, "far rows")),
    planted(twice, _cuda_blocks(_GRID_FAULT), "grid limits"),
    *(correct(twice, _cuda_blocks(name), checks=_RIGHT_CHECKS) for name in _GRIDS if name != _GRID_FAULT),
    *(planted(add_up, _cuda_sum(name, changes), "values", checks=_CHECKS) for name, changes in _SUM_FAULTS.items()),
    *(correct(add_up, _cuda_sum(name, changes), checks=_RIGHT_CHECKS) for name, changes in _SUM_RIGHT.items()),
]

# -- Triton -----------------------------------------------------------------------------------------------------------

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def _scale_triton(x, out, a, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
        block = tl.program_id(0)
        if FAULT == 1:
            block = 0
        at = block * BLOCK + tl.arange(0, BLOCK)
        limit = n
        if FAULT == 2:
            limit = n - n % BLOCK
        if FAULT == 3:
            limit = n + 1
        if FAULT == 4:
            limit = tl.minimum(n, 1024)
        mask = at < limit
        values = tl.load(x + at, mask=at < n, other=0.0)
        if FAULT == 5:
            values = values.to(tl.float16).to(tl.float32)
        if FAULT == 6:
            values = tl.load(x + at + 1, mask=at < n, other=0.0) * 0 + values
        factor = a
        if FAULT == 7:
            factor = tl.abs(a * 1.0)
        if FAULT == -1:
            tl.store(out + at, factor * values, mask=mask & (at >= 0))
        else:
            tl.store(out + at, factor * values, mask=mask)

    _TRITON_FAULTS = {
        1: ("every program does the first block", "values"),
        2: ("the last block is left out", "values"),
        3: ("one element too many is written", "memory"),
        4: ("only 1024 elements", "values"),
        5: ("float32 is computed in float16", "values"),
        6: ("one element too many is read", "memory"),
        7: ("the scalar's sign is lost", "values"),
    }
    _TRITON_RIGHT = {0: "as it is", -1: "a mask that is always true besides"}

    def _triton(fault: int) -> str:
        name = f"triton_{fault}" if fault > 0 else f"triton_right_{-fault}"

        def launch(x: Tensor, a: float) -> Tensor:
            x = x.contiguous()
            out: Any = torch.empty_like(x)
            if x.numel():
                _scale_triton[(ow.cdiv(x.numel(), 128),)](x, out, a, x.numel(), FAULT=fault, BLOCK=128)
            return out

        scale.triton(launch, name=name)
        return name

    @triton.jit
    def _centred(x, out, n, BARRIER: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        values = tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=0.0)
        total = out + tl.program_id(0) * (n + 1)
        tl.store(total, tl.sum(values))
        if BARRIER:
            tl.debug_barrier()
        tl.store(total + 1 + at, values - tl.load(total) / n, mask=at < n)

    @triton.jit
    def _twice_blocks(x, out, n, IN_Y: tl.constexpr, BLOCK: tl.constexpr):
        blocks = tl.cdiv(n, BLOCK)
        row, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
        if IN_Y:
            row, block = tl.program_id(0), tl.program_id(1)
        at = block * BLOCK + tl.arange(0, BLOCK)
        first = row.to(tl.int64) * n
        tl.store(out + first + at, 2 * tl.load(x + first + at, mask=at < n), mask=at < n)

    @ow.op("selftest_gpu::centred")
    def centred(x: Float32[Tensor, "b n"]) -> Float32[Tensor, "b n+1"]:
        return torch.cat([x.sum(1, keepdim=True), x - x.mean(1, keepdim=True)], 1)

    def _triton_centred(name: str, barrier: bool) -> str:
        def launch(x: Tensor) -> Tensor:
            x = x.contiguous()
            out = torch.zeros(x.shape[0], x.shape[1] + 1, dtype=x.dtype, device=x.device)
            if x.numel():
                _centred[(len(x),)](x, out, x.shape[1], BARRIER=barrier, BLOCK=triton.next_power_of_2(x.shape[1]))
            return out

        centred.triton(launch, name=name, devices=None if barrier else ["cpu"])  # a GPU shows it by chance only
        return name

    def _triton_tuned(name: str, in_y: bool) -> str:
        tuned = triton.autotune([triton.Config({"BLOCK": block}) for block in (128, 256)], key=["n"])(_twice_blocks)

        def launch(x: Tensor) -> Tensor:
            x = x.contiguous()
            out = torch.empty_like(x)
            rows, n = x.shape

            def grid(meta: Any) -> tuple[int, ...]:
                blocks = ow.cdiv(n, meta["BLOCK"])
                return (rows, blocks) if in_y else (rows * blocks,)

            if x.numel():
                tuned[grid](x, out, n, IN_Y=in_y)
            return out

        twice.triton(launch, name=name)
        return name

    ROWS += [
        planted(twice, _triton_tuned("Triton: blocks of a row in y of the grid, autotuned", True), "grid limits"),
        correct(twice, _triton_tuned("Triton: a grid of one dim, autotuned", False), checks=_RIGHT_CHECKS),
        planted(centred, _triton_centred("Triton: no barrier after a number is stored", False), "values"),
        correct(centred, _triton_centred("Triton: a barrier after a number is stored", True), checks=_RIGHT_CHECKS),
        *(
            planted(scale, _triton(f), check, defect=f"Triton: {words}", checks=_CHECKS)
            for f, (words, check) in _TRITON_FAULTS.items()
        ),
        *(
            correct(scale, _triton(f), defect=f"Triton: {words}", checks=_RIGHT_CHECKS)
            for f, words in _TRITON_RIGHT.items()
        ),
    ]
