"""Kernels of operators that are declared deterministic: some whose bits are left to chance, and some that look so."""

from __future__ import annotations

import importlib.util
import random
import threading
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.planted.catalogue import Row, attach, correct, planted

__all__ = ["ROWS", "add_up", "add_up_again"]

_CHECKS = ("values", "determinism")


@ow.op("selftest_determinism::add_up", deterministic=True)
def add_up(x: Float32[Tensor, "b n"]) -> Float32[Tensor, " b"]:
    return x.sum(1)


# -- Python -----------------------------------------------------------------------------------------------------------


def _in_the_order_of_threads(x: Tensor) -> Tensor:
    total, lock = x.new_zeros(len(x)), threading.Lock()

    def add(part: Tensor) -> None:
        own = part.sum(1)
        with lock:
            total.add_(own)

    threads = [threading.Thread(target=add, args=(part,)) for part in x.tensor_split(4, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return total


def _by_address(x: Tensor) -> Tensor:
    x = x.contiguous()
    # In steps of 512 bytes, which allocators of GPUs have, too.
    return (x if x.data_ptr() // 512 % 2 else x.flip(1)).sum(1)


def _rows_in_any_order(x: Tensor) -> Tensor:
    out = x.new_empty(len(x))
    parts = list(zip(x.tensor_split(3), out.tensor_split(3), strict=True))
    for part, result in random.sample(parts, 3):
        result.copy_(part.sum(1))
    return out


ROWS: list[Row] = attach(
    add_up,
    {
        "added in the order of threads": ("determinism", _in_the_order_of_threads),
        "another order at some addresses": ("determinism", _by_address),
    },
    {"as it is": lambda x: x.sum(1), "rows in any order": _rows_in_any_order},
    checks=_CHECKS,
    beside=_CHECKS,
)


@ow.op("selftest_determinism::add_up_again", deterministic=True)
def add_up_again(x: Float32[Tensor, "b n"]) -> Float32[Tensor, " b"]:
    return x.sum(1)


add_up_again.python(lambda x: x.sum(1), name="a gradient of chance")
add_up_again.register_autograd(
    lambda ctx, grad: (grad * random.choice((1.0, 1.0 + 2**-22))).unsqueeze(1).expand(ctx.shape),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "shape", inputs[0].shape),
)
ROWS += [planted(add_up_again, "a gradient of chance", "determinism", checks=_CHECKS)]

# -- CUDA -------------------------------------------------------------------------------------------------------------

# A row is added up in four parts: ADD is done with the sum of each. Parts are for certain blocks, or taken as they come.
_SUM = """
__global__ void add_up(const float* x, float* out, float* parts, unsigned* taken, unsigned* ended, int b, int n) {
  for (long next = FIRST; next < 4L * b; next = NEXT) {
    long row = next / 4, part = next % 4;
    float sum = 0;
    for (int i = part; i < n; i += 4) sum += x[row * n + i];
    ADD
  }
}
"""
_OF_BLOCKS = "blockIdx.x", "next + gridDim.x"
_TAKEN = "atomicAdd(taken, 1u)", "atomicAdd(taken, 1u)"
_ADDS_ATOMICALLY = "atomicAdd(out + row, sum);"
_LAST_BLOCK_ADDS = """
    volatile float* of_row = parts + 4 * row;
    of_row[part] = sum;
    __threadfence();
    if (atomicAdd(ended + row, 1u) == 3) {
      __threadfence();
      out[row] = of_row[0] + of_row[1] + of_row[2] + of_row[3];
    }
"""


def _cuda(name: str, add: str, first: str, after: str) -> str:
    kernels = ow.cuda_module(_SUM.replace("ADD", add).replace("FIRST", first).replace("NEXT", after))

    def launch(x: Tensor) -> Tensor:
        x, (b, n) = x.contiguous(), x.shape
        out = x.new_zeros(b)
        if b:
            taken, ended = x.new_zeros(1, dtype=torch.uint32), x.new_zeros(b, dtype=torch.uint32)
            kernels["add_up"][min(4 * b, 1024), 1](x, out, x.new_empty(4 * b), taken, ended, b, n)
        return out

    add_up.cuda(launch, name=name)
    return name


ROWS += [
    planted(add_up, _cuda("CUDA: blocks add atomically", _ADDS_ATOMICALLY, *_OF_BLOCKS), "determinism", checks=_CHECKS),
    correct(add_up, _cuda("CUDA: the last block adds in order", _LAST_BLOCK_ADDS, *_OF_BLOCKS), checks=_CHECKS),
    correct(add_up, _cuda("CUDA: blocks take parts as they come", _LAST_BLOCK_ADDS, *_TAKEN), checks=_CHECKS),
]

# -- Triton -----------------------------------------------------------------------------------------------------------

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def _add_atomically(x, out, n, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        tl.atomic_add(out + row, tl.sum(tl.load(x + row * n + at, mask=at < n, other=0.0)))

    @triton.jit
    def _add_rows(x, out, n, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, n, BLOCK):
            at = start + tl.arange(0, BLOCK)
            total += tl.load(x + row * n + at, mask=at < n, other=0.0)
        tl.store(out + row, tl.sum(total))

    _configurations = [triton.Config({"BLOCK": block}) for block in (32, 256)]
    _add_rows_tuned = triton.autotune(_configurations, key=["n"])(_add_rows)

    @add_up.triton(name="Triton: programs add atomically")
    def _(x: Tensor) -> Tensor:
        x, out = x.contiguous(), x.new_zeros(len(x))
        if x.numel():
            _add_atomically[len(x), ow.cdiv(x.shape[1], 32)](x, out, x.shape[1], BLOCK=32)
        return out

    def _launch(kernel: Any, x: Tensor, **options: int) -> Tensor:
        x, out = x.contiguous(), x.new_empty(len(x))
        if len(x):
            kernel[(len(x),)](x, out, x.shape[1], **options)
        return out

    add_up.triton(lambda x: _launch(_add_rows_tuned, x), name="Triton: autotuned, with other orders")
    add_up.triton(lambda x: _launch(_add_rows, x, BLOCK=128), name="Triton: a program for each row")

    ROWS += [
        planted(add_up, "Triton: programs add atomically", "determinism", checks=_CHECKS),
        planted(add_up, "Triton: autotuned, with other orders", "determinism", checks=_CHECKS),
        correct(add_up, "Triton: a program for each row", checks=_CHECKS),
    ]
