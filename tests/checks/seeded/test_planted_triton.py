"""Twenty faults in Triton kernels: each is caught without a GPU, by its line where the simulator sees it."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.results import Status
from tests.sampled import sampled

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
pytestmark = [
    pytest.mark.slow,  # g++ compiles each kernel for several sizes
    pytest.mark.triton,
    pytest.mark.compiler,
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
]


@triton.jit
def _softmax(x, out, n, stride, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    mask = i < n
    if FAULT == "no mask":
        v = tl.load(x + row * stride + i)  # no mask
    elif FAULT == "one too wide":
        v = tl.load(x + row * stride + i, mask=i <= n, other=-float("inf"))  # one too wide
    elif FAULT == "padded with 0":
        v = tl.load(x + row * stride + i, mask=mask, other=0.0)
    elif FAULT == "stride of 1":
        v = tl.load(x + row + i, mask=mask, other=-float("inf"))
    else:
        v = tl.load(x + row * stride + i, mask=mask, other=-float("inf"))
    v = v.to(tl.float32)
    e = tl.exp(v) if FAULT == "no maximum" else tl.exp(v - tl.max(v, 0))
    r = e / tl.sum(e.to(tl.float16) if FAULT == "half sum" else e, 0)
    if FAULT == "over the neighbour":
        tl.store(out + row * n + i, r)  # over the neighbour
    elif FAULT == "all in one row":
        tl.store(out + i, r, mask=mask)
    elif FAULT == "first half":
        tl.store(out + row * n + i, r, mask=i < (n + 1) // 2)
    elif FAULT == "column by column":
        tl.store(out + row + i * n, r, mask=mask)  # column by column
    else:
        tl.store(out + row * n + i, r, mask=mask)


@triton.jit
def _product(a, b, c, m, n, k, FAULT: tl.constexpr, B: tl.constexpr):
    rows, columns = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for start in range(0, k, B):
        inner = start + tl.arange(0, B)
        in_a = (rows[:, None] < m) & (inner[None, :] < k)
        if FAULT == "no mask for k":
            in_a = (rows[:, None] < m) & (inner[None, :] >= 0)
        left = tl.load(a + rows[:, None] * k + inner[None, :], mask=in_a, other=0.0)
        in_b = (inner[:, None] < k) & (columns[None, :] < n)
        if FAULT == "b transposed":
            right = tl.load(b + columns[None, :] * k + inner[:, None], mask=in_b, other=0.0)
        else:
            right = tl.load(b + inner[:, None] * n + columns[None, :], mask=in_b, other=0.0)
        if FAULT == "tf32":
            total = tl.dot(left, right, total, input_precision="tf32")
        elif FAULT == "last tile only":
            total = tl.dot(left, right, input_precision="ieee")
        elif FAULT == "half accumulator":
            total = tl.dot(left, right, total, input_precision="ieee").to(tl.float16).to(tl.float32)
        else:
            total = tl.dot(left, right, total, input_precision="ieee")
    at, inside = c + rows[:, None] * n + columns[None, :], (rows[:, None] < m) & (columns[None, :] < n)
    if FAULT == "atomic without zeros":
        tl.atomic_add(at, total, mask=inside)
    elif FAULT == "read and add":
        tl.store(at, tl.load(at, mask=inside) + total, mask=inside)
    elif FAULT == "no mask for columns":
        tl.store(at, total, mask=(rows[:, None] < m) & (columns[None, :] >= 0))  # no mask for columns
    else:
        tl.store(at, total, mask=inside)


@triton.jit
def _sums(x, out, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x + at, mask=at < n, other=0.0))
    if FAULT == "no atomic":
        tl.store(out, tl.load(out) + part)  # no atomic
    elif FAULT == "overflow":
        far = (tl.program_id(0) + 2) * 1073741824  # overflow
        tl.atomic_add(out, part + tl.where(far == 1, 1.0, 0.0))
    else:
        tl.atomic_add(out, part)


@ow.op("planted_triton::softmax")
def softmax(x: Float[Tensor, "r n"]) -> Float[Tensor, "r n"]:
    return x.softmax(-1)


@ow.op("planted_triton::product")
def product(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    return a @ b


@ow.op("planted_triton::total")
def total(x: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    return x.sum()


def _launch_softmax(fault):
    def launch(x):
        x = x.contiguous()
        out = torch.empty_like(x)
        if x.numel():
            block = triton.next_power_of_2(x.shape[1])
            _softmax[(x.shape[0],)](x, out, x.shape[1], x.stride(0), FAULT=fault, BLOCK=block)
        return out

    return launch


def _launch_product(fault):
    def launch(a, b):
        a, b, c = a.contiguous(), b.contiguous(), a.new_empty(a.shape[0], b.shape[1])
        if c.numel():
            grid = (triton.cdiv(c.shape[0], 16), triton.cdiv(c.shape[1], 16))
            _product[grid](a, b, c, c.shape[0], c.shape[1], a.shape[1], FAULT=fault, B=16)
        return c

    return launch


def _launch_total(fault):
    def launch(x):
        x, out = x.contiguous(), x.new_zeros(())
        if x.numel():
            _sums[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), FAULT=fault, BLOCK=64)
        return out

    return launch


# The kind of the simulator's finding, or nothing where only the results are wrong.
FAULTS = {
    softmax: (_launch_softmax, {
        "no mask": "out-of-bounds", "one too wide": "out-of-bounds", "padded with 0": "", "stride of 1": "",
        "half sum": "", "over the neighbour": "", "all in one row": "", "first half": "",
        "column by column": "out-of-bounds", "no maximum": "",
    }),
    product: (_launch_product, {
        "no mask for k": "", "b transposed": "", "tf32": "", "last tile only": "", "half accumulator": "",
        "atomic without zeros": "", "read and add": "", "no mask for columns": "",
    }),
    total: (_launch_total, {"no atomic": "race", "overflow": "integer-overflow"}),
}  # fmt: skip
for _op, (_launcher, _faults) in FAULTS.items():
    for _fault in ("none", *_faults):
        _op.triton(_launcher(_fault), name=_fault, dtypes=[torch.float32])


def _verdict(op, kernel):
    (verdict,) = ow.check(op, kernels=[kernel], device="cpu-sim", checks=["values", "special values"]).verdicts
    return verdict


@pytest.mark.parametrize(
    ("op", "fault"), sampled([pytest.param(op, fault) for op, (_, faults) in FAULTS.items() for fault in faults], 4)
)
def test_a_fault_is_caught(op, fault):
    verdict = _verdict(op, fault)
    wrong = [f for f in verdict.findings if f.status in (Status.FAIL, Status.WARNING)]
    assert wrong, verdict
    kind = FAULTS[op][1][fault]
    found = re.search(r"test_planted_triton\.py:(\d+): ([\w-]+): ", wrong[0].message)
    if kind:
        assert found, wrong[0].message
        source = inspect.getsource(inspect.getmodule(_launch_total)).splitlines()
        assert source[int(found[1]) - 1].endswith(f"# {fault}")
        assert found[2] == kind


@pytest.mark.parametrize("op", FAULTS)
def test_without_it_the_kernel_passes(op):
    verdict = _verdict(op, "none")
    assert verdict.status is Status.PASS, verdict.findings
