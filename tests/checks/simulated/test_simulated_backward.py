"""Backwards that launch Triton kernels run in the simulator: as registered functions, and inside of kernels."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.backends.gpu.simulated_tensors import backwards_on_simulated
from opwright.results import Status

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
pytestmark = [
    pytest.mark.triton,
    pytest.mark.compiler,
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
]


@triton.jit
def _scale(x, out, a, n, PAST: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, a * tl.load(x + at, mask=at < n + PAST), mask=at < n)


@triton.jit
def _scale_outside(x, out, a, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    value = tl.inline_asm_elementwise("mul.f32 $0, $1, 0f40000000;", "=f,f", [value], tl.float32, True, 1)
    tl.store(out + at, value, mask=at < n)


def run(x, a, past=0):
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        _scale[(triton.cdiv(x.numel(), 64),)](x, out, a, x.numel(), past, BLOCK=64)
    return out


def run_outside(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    _scale_outside[(triton.cdiv(x.numel(), 64),)](x, out, 2.0, x.numel(), BLOCK=64)
    return out


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return run(x, 2.0)

    @staticmethod
    def backward(ctx, grad):
        return run(grad, 2.0)


class _WrongDouble(_Double):
    @staticmethod
    def backward(ctx, grad):
        return run(grad, 3.0)


class _FarDouble(_Double):
    @staticmethod
    def backward(ctx, grad):
        return run(grad, 2.0, past=1)


def doubling(namespace: str, launch) -> ow.Op:
    @ow.op(f"{namespace}::double")
    def double(x: Float32[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
        return 2 * x

    double.triton(launch, name="kernel")
    return double


def with_backward(namespace: str, backward) -> ow.Op:
    double = doubling(namespace, lambda x: run(x, 2.0))
    double.register_autograd(backward, setup_context=lambda ctx, inputs, output: None)
    return double


def findings(op: ow.Op, *checks: str, level: str = "smoke"):
    (verdict,) = ow.check(op, device="cpu-sim", checks=list(checks), level=level).verdicts
    return verdict


def test_a_right_backward_inside_a_kernel_gets_the_warning_only(namespace):
    verdict = findings(doubling(namespace, lambda x: _Double.apply(x)), "own backward")
    assert [(f.check, f.status) for f in verdict.findings] == [("own backward", Status.WARNING)], verdict.findings
    assert "a backward of its own (_Double)" in verdict.findings[0].message


def test_a_wrong_backward_inside_a_kernel_fails(namespace):
    (failure,) = findings(doubling(namespace, lambda x: _WrongDouble.apply(x)), "own backward").failures
    assert "the backward of _WrongDouble" in failure.message
    assert "the gradient of 'x' is wrong" in failure.message


def test_an_access_outside_of_the_incoming_gradient_names_the_line(namespace):
    (failure,) = findings(doubling(namespace, lambda x: _FarDouble.apply(x)), "own backward").failures
    assert "out-of-bounds" in failure.message
    assert "test_simulated_backward.py:26: out-of-bounds" in failure.message


def test_a_right_backward_function_passes_in_eager_and_in_graphs(namespace):
    op = with_backward(namespace, lambda ctx, grad: run(grad, 2.0))
    verdict = findings(op, "gradients", "opcheck", "torch.compile")
    assert verdict.status is Status.PASS, verdict.findings


@pytest.mark.slow  # torch.compile with Inductor
def test_a_right_backward_function_passes_at_level_full(namespace):
    verdict = findings(with_backward(namespace, lambda ctx, grad: run(grad, 2.0)), "torch.compile", level="full")
    assert verdict.status is Status.PASS, verdict.findings


@pytest.mark.parametrize(
    ("backward", "expected"),
    [
        (lambda ctx, grad: run(grad, 3.0), "the gradient of 'x' is wrong"),
        (lambda ctx, grad: run(grad, 2.0, past=1), "out-of-bounds"),
    ],
)
def test_a_wrong_backward_function_fails(namespace, backward, expected):
    (failure, *_) = findings(with_backward(namespace, backward), "gradients").failures
    assert expected in failure.message


def test_a_backward_that_the_simulator_does_not_have_is_not_checked(namespace):
    verdict = findings(with_backward(namespace, lambda ctx, grad: run_outside(grad)), "gradients")
    assert not verdict.failures
    assert any("the backward is not simulated" in n.why for n in verdict.not_checked)


def _asserting(grad):
    assert grad.is_cuda
    return run(grad, 2.0)


class _AssertingDouble(_Double):
    @staticmethod
    def backward(ctx, grad):
        return _asserting(grad)


def test_a_gradient_is_a_cuda_tensor_to_a_backward(namespace):
    verdict = findings(doubling(namespace, lambda x: _AssertingDouble.apply(x)), "own backward")
    assert [f.status for f in verdict.findings] == [Status.WARNING], verdict.findings
    verdict = findings(with_backward(f"{namespace}_2", lambda ctx, grad: _asserting(grad)), "gradients")
    assert verdict.status is Status.PASS, verdict.findings


def test_after_an_exception_of_a_backward_tensors_are_cpu_tensors(namespace):
    x = torch.ones(3, requires_grad=True)

    class Raising(_Double):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            assert not grad.is_cuda, "as on a GPU"

    y = Raising.apply(x)
    with pytest.raises(AssertionError, match="as on a GPU"), backwards_on_simulated([y]):
        torch.autograd.grad(y.sum(), x)
    assert not x.is_cuda


class _OfAnotherModule:
    """Torch cannot trace into what is not a function of the operator's file."""

    run = staticmethod(run)


def test_a_backward_that_cannot_be_traced_gets_the_remedy(namespace):
    op = with_backward(namespace, lambda ctx, grad: _OfAnotherModule.run(grad, 2.0))
    verdict = findings(op, "gradients", "opcheck", "torch.compile")
    assert [f.check for f in verdict.failures] == ["opcheck", "torch.compile"], verdict.findings
    assert all("make the backward an operator of its own" in f.remedy for f in verdict.failures), verdict.failures
