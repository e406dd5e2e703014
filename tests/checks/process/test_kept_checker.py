"""One checker for several kernels of an operator: what the reference has given is kept, and nothing of a kernel is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import opwright as ow
from opwright.results import Status
from opwright.runtime.op import Op
from opwright.runtime.targets import load_target

HEAD = """
import os
from jaxtyping import Float32
from torch import Tensor, empty_like
import opwright as ow
from opwright.target import engines_here

LOG = {log!r}

@ow.op("kept::{name}")
def {name}(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    if type(x) is Tensor and x.device.type == "cpu":
        with open(LOG, "a") as file:
            print(os.getpid(), bool(engines_here()), file=file)
    return 2 * x
"""

SEVERAL = """
@{name}.python(name="right")
def _(x):
    return x + x

@{name}.python(name="wrong")
def _(x):
    return 3 * x

@{name}.python(name="writes its argument")
def _(x):
    y = x + x
    x.zero_()
    return y

@{name}.python(name="ends its process")
def _(x):
    os._exit(0)

@{name}.python(name="right again")
def _(x):
    return x * 2
"""


def _operator(folder: Path, name: str, kernels: str = SEVERAL) -> tuple[Op, Path]:
    log = folder / f"{name}.log"
    file = folder / f"{name}_op.py"
    file.write_text((HEAD + kernels).format(name=name, log=str(log)))
    (op,) = load_target(str(file))
    log.write_text("")
    return op, log


def _statuses(op: Op) -> dict[str, Status]:
    report = ow.check(op, checks=["values", "inputs unchanged"], device="cpu", jobs=1)
    return {v.kernel: v.status for v in report.verdicts}


def _checkers(log: Path) -> list[str]:
    """The processes that have called the reference, in order."""
    return list(dict.fromkeys(line.split()[0] for line in log.read_text().splitlines()))


RIGHT = {
    "right": Status.PASS, "wrong": Status.FAIL, "writes its argument": Status.FAIL, "ends its process": Status.FAIL,
    "right again": Status.PASS,
}  # fmt: skip


@pytest.mark.slow
def test_each_kernel_gets_its_own_verdict_from_one_checker(tmp_path: Path) -> None:
    op, log = _operator(tmp_path, "shared")
    assert _statuses(op) == RIGHT
    checkers = _checkers(log)
    assert len(checkers) == 3  # one ends with the kernel's process that has ended, and one as that runs again for blame
    calls = log.read_text().split()
    assert calls.count(checkers[0]) < 4 * calls.count(checkers[-1])  # three kernels, of which the reference ran for one


def test_a_checker_ends_when_nothing_is_checked(tmp_path: Path) -> None:
    op, log = _operator(tmp_path, "alone")
    for _ in range(2):
        ow.check(op, checks=["values"], device="cpu", kernels=["right"])
    assert len(_checkers(log)) == 2


SIMULATED = """
import triton
import triton.language as tl

@{name}.python(name="first")
def _(x):
    return x + x

@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

@{name}.triton(name="simulated")
def _(x):
    x, out = x.contiguous(), empty_like(x).contiguous()
    double[triton.cdiv(len(x), 128),](x, out, len(x), BLOCK=128)
    return out

@{name}.python(name="last")
def _(x):
    return x * 2
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, what a CPU checks by default is not simulated")
def test_a_kernel_in_the_simulator_and_one_outside_have_the_same_checker(tmp_path: Path) -> None:
    op, log = _operator(tmp_path, "simulated", SIMULATED)
    report = ow.check(op, checks=["values"], device="cpu", jobs=1, level="smoke")
    assert {v.kernel: v.status for v in report.verdicts} == dict.fromkeys(("first", "simulated", "last"), Status.PASS)
    checker, *others = _checkers(log)
    assert not others
    assert [*dict.fromkeys(log.read_text().splitlines())] == [f"{checker} False", f"{checker} True"]
