"""Published launchers: they call functions that launch kernels, and assert that their tensors are on a GPU."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.backends.gpu.simulated_tensors import AsOnGpu
from opwright.errors import KernelRefusedError
from opwright.results import Status
from opwright.runtime.inspect.show import show_kernel

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
pytestmark = [pytest.mark.triton, pytest.mark.compiler]


@triton.jit
def _double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


_tuned = triton.autotune([triton.Config({"BLOCK": 128}, num_warps=2), triton.Config({"BLOCK": 256})], key=["n"])(
    _double
)


class Library:
    """Another package."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        assert x.is_cuda, "x must be on a GPU"
        out = torch.empty_like(x)
        if x.numel():
            _double[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
        return out

    @staticmethod
    def tuned(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        _tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
        return out


def doubling(namespace, launcher):
    @ow.op(f"{namespace}::double")
    def double(x: Float32[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
        return 2 * x

    double.triton(launcher, name="kernel")
    return double


def shown(op: ow.Op, what: str) -> str:
    (one,) = show_kernel(op.kernels["kernel"], what, "sm_90")
    return one.text


def test_show_follows_a_function_of_another_module(namespace):
    text = shown(doubling(namespace, lambda x: Library.forward(x.contiguous())), "ttir")
    assert "tt.func public @_double" in text


def test_show_takes_the_first_configuration(namespace):
    text = shown(doubling(namespace, lambda x: Library.tuned(x)), "ttgir")
    assert '"ttg.num-warps" = 2' in text
    assert "128xf32" in text


def test_a_launcher_that_launches_nothing_has_nothing_to_show(namespace):
    with pytest.raises(KernelRefusedError, match="launches no Triton kernel"):
        shown(doubling(namespace, lambda x: 2 * x), "ttir")


def _by_device(x: Tensor) -> Tensor:
    assert x.device.type == "cuda"
    return Library.forward(x)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_simulated_tensors_are_cuda_tensors_to_a_launcher(namespace):
    right = doubling(namespace, lambda x: Library.forward(x.contiguous()))
    assert ow.check(right, device="cpu-sim", checks=["values"], level="smoke").verdicts[0].status is Status.PASS
    wrong = doubling(f"{namespace}_2", lambda x: 3 * x if x.is_cuda else 2 * x)
    assert "elements differ" in ow.check(wrong, device="cpu-sim", checks=["values"]).verdicts[0].failures[0].message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_another_assertion_names_its_line(namespace):
    (verdict,) = ow.check(doubling(namespace, _by_device), device="cpu-sim", checks=["values"]).verdicts
    assert 'assert x.device.type == "cuda"' in verdict.failures[0].message


def test_outside_of_a_launcher_they_are_cpu_tensors():
    x = torch.ones(3)
    with AsOnGpu():
        assert x.is_cuda
        assert x.device.type == "cpu"
        assert torch.empty_like(x).is_cuda
    assert not x.is_cuda
