"""In the simulators, a kernel may write what the contract declares as mutated, and what it has allocated."""

from __future__ import annotations

from typing import Annotated

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import kernelsim
import opwright as ow
from opwright import target
from opwright.backends import in_backward, under_check

pytestmark = pytest.mark.compiler

KERNELS = ow.cuda_module("""
__global__ void add(float* x, const float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += y[i];
}
__global__ void add_and_take_back(float* x, const float* y, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) { x[i] += y[i]; *(volatile float*)(out + i) = x[i]; x[i] -= y[i]; }
}
""")


@ow.op("read_only::add_to")
def add_to(x: Annotated[Float32[Tensor, " n"], ow.mutated], y: Float32[Tensor, " n"]) -> None:
    x.add_(y)


@add_to.cuda
def cuda(x, y):
    KERNELS["add"][1, 32](x, y, len(x))


@add_to.cuda(name="into y")
def into_y(x, y):
    KERNELS["add"][1, 32](y, x, len(x))


@ow.op("read_only::add")
def add(x: Float32[Tensor, " n"], y: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return x + y


@add.cuda(name="in scratch memory")
def in_scratch_memory(x, y):
    out = x.clone()
    add_to.kernels["cuda"](out, y)
    return out


def through_another_operator(x, y):
    add_to.kernels["cuda"](x, y)
    return x.clone()


def taken_back(x, y):
    out = torch.empty_like(x)
    with kernelsim.options(seed=3):  # options of the launcher's own change nothing of that
        KERNELS["add_and_take_back"][1, 32](x, y, out, len(x))
    return out


add.cuda(through_another_operator, name="through another operator")
add.cuda(taken_back, name="taken back")
add.python(taken_back, name="taken back, in Python")


@pytest.fixture(autouse=True)
def _simulator(monkeypatch):
    monkeypatch.setattr(target, "_of_check", [target.Engine.SIMULATOR])


def test_what_is_declared_as_mutated_or_was_allocated_may_be_written():
    x, y = torch.arange(8.0), torch.ones(8)
    assert torch.equal(add.kernels["in scratch memory"](x, y), x + 1)
    add_to.kernels["cuda"](x, y)
    assert torch.equal(x, torch.arange(8.0) + 1)
    assert torch.equal(add.kernels["in scratch memory"](x, x), 2 * x)  # one tensor for two arguments


@pytest.mark.parametrize(
    ("op", "kernel", "argument"),
    [
        (add_to, "into y", "x"),  # the kernel calls it so
        (add, "through another operator", "x"),
        (add, "taken back", "x"),
        (add, "taken back, in Python", "x"),
    ],
)
def test_a_write_of_another_argument_is_found(op, kernel, argument):
    match = rf"read-only: writes 4 bytes at byte \d+ of argument '{argument}'"
    with pytest.raises(ow.errors.SimulatorError, match=match):
        op.kernels[kernel](torch.arange(8.0), torch.ones(8))


def test_a_backward_must_not_write_what_it_gets():
    x, y = torch.arange(8.0), torch.ones(8)
    with in_backward([x]):
        with pytest.raises(ow.errors.SimulatorError, match="read-only"):
            KERNELS["add"][1, 32](x, y, len(x))
        KERNELS["add"][1, 32](y, x, len(x))
    KERNELS["add"][1, 32](x, y, len(x))


def test_a_check_of_a_kernel_for_cpus_watches_its_simulated_launches(monkeypatch):
    monkeypatch.setattr(target, "_of_check", [target.Engine.NATIVE])
    kernel = add.kernels["taken back, in Python"]
    monkeypatch.setattr(kernel, "_prepared_by_device", {})
    with under_check(), pytest.raises(ow.errors.SimulatorError, match="read-only: writes 4 bytes"):
        kernel(torch.arange(8.0), torch.ones(8))
