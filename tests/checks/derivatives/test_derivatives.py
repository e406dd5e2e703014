"""References without a derivative, and results with NaN, are no fault of a kernel; a wrong gradient still is."""

from typing import Annotated

import pytest
import torch
from jaxtyping import Float, Inexact, Int64
from torch import Tensor

import opwright as ow


class Wide(torch.autograd.Function):
    """As functions of torch whose derivative is not implemented in every dtype."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.special.i1(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if x.dtype is torch.float16:
            raise NotImplementedError("\"i1_backward\" not implemented for 'Half'")
        return grad * (torch.special.i0(x) - torch.where(x == 0, 0.5, torch.special.i1(x) / x))


def bessel(namespace):
    """There is a derivative of ``i1`` in all dtypes but one."""

    @ow.op(f"{namespace}::bessel")
    def bessel(x: Annotated[Float[Tensor, "*n"], ow.values(-3, 3)]) -> Float[Tensor, "*n"]:
        return Wide.apply(x)

    bessel.python(lambda x: torch.special.i1(x).contiguous(), name="kernel")
    return bessel


def zeta(namespace):
    """torch has no derivative by ``x``."""

    @ow.op(f"{namespace}::zeta")
    def zeta(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return torch.special.zeta(x, y)

    zeta.python(lambda x, y: torch.special.zeta(x, y).contiguous(), name="kernel")
    return zeta


def loss(namespace):
    """torch has no derivative by ``weight``."""

    @ow.op(f"{namespace}::loss")
    def loss(
        x: Float[Tensor, "n m"],
        labels: Annotated[Int64[Tensor, " n"], ow.values(0, "m-1")],
        weight: Float[Tensor, " m"],
    ) -> Float[Tensor, ""]:
        return torch.nn.functional.nll_loss(x, labels, weight)

    loss.python(lambda x, labels, weight: torch.nn.functional.nll_loss(x, labels, weight), name="kernel")
    return loss


def silu(namespace):
    """torch has no derivative of complex dtypes."""

    @ow.op(f"{namespace}::silu")
    def silu(x: Inexact[Tensor, "*n"]) -> Inexact[Tensor, "*n"]:
        return torch.nn.functional.silu(x)

    silu.python(lambda x: torch.nn.functional.silu(x).contiguous(), name="kernel")
    return silu


def logarithm(namespace):
    @ow.op(f"{namespace}::logarithm")
    def logarithm(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return x.log()

    logarithm.python(lambda x: x.log().contiguous(), name="kernel")
    return logarithm


CHECKS = ["gradients", "opcheck", "torch.compile"]


def verdict_of(op, checks=CHECKS):
    (verdict,) = ow.check(op, checks=checks, device="cpu").verdicts
    return verdict


def failing(verdict):
    return {f.check: f.message for f in verdict.findings if f.status is ow.results.Status.FAIL}


def reasons(verdict):
    return [n.reason for n in verdict.not_checked if n.check == "gradients"]


def test_a_dtype_without_a_derivative_is_not_checked_and_others_are(namespace):
    verdict = verdict_of(bessel(namespace))
    assert failing(verdict) == {}
    assert [r for r in reasons(verdict) if "not implemented for 'Half'" in r]
    assert next(f.message for f in verdict.findings if f.check == "gradients").endswith("backward passes")


@pytest.mark.slow  # whole checks
def test_an_argument_without_a_derivative(namespace):
    for op, name in ((zeta(namespace), "x"), (loss(namespace), "weight")):
        verdict = verdict_of(op)
        assert failing(verdict) == {}
        assert [r for r in reasons(verdict) if r.startswith(f"the reference has no derivative by '{name}'")]
        assert "gradients" in {f.check for f in verdict.findings}


def test_complex_dtypes_without_a_derivative(namespace):
    verdict = verdict_of(silu(namespace))
    assert failing(verdict) == {}
    assert [r for r in reasons(verdict) if "complex" in r]


def test_a_custom_backward_that_fails_is_a_finding(namespace):
    op = bessel(namespace)

    def backward(ctx, grad):
        raise RuntimeError("no backward here")

    op.register_autograd(backward)
    assert "no backward here" in failing(verdict_of(op))["gradients"]


@pytest.mark.slow  # a whole check of many dtypes
def test_a_wrong_custom_backward_is_found_in_the_dtypes_with_a_derivative(namespace):
    op = bessel(namespace)
    op.register_autograd(lambda ctx, grad: grad * 3)
    verdict = verdict_of(op)
    assert "is wrong" in failing(verdict)["gradients"]
    assert [r for r in reasons(verdict) if r.startswith("the reference has no derivative to compare with")]


def test_a_custom_backward_where_the_reference_has_none(namespace):
    @ow.op(f"{namespace}::sine")
    def sine(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        if x.requires_grad:
            raise NotImplementedError("no derivative")
        return x.sin()

    def save(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    sine.python(lambda x: x.sin().contiguous(), name="kernel")
    sine.register_autograd(lambda ctx, grad: grad * ctx.saved_tensors[0].cos(), setup_context=save)
    verdict = verdict_of(sine)
    assert failing(verdict) == {}
    assert [r for r in reasons(verdict) if "no derivative to compare with: NotImplementedError" in r]


def test_results_with_nan(namespace):
    verdict = verdict_of(logarithm(namespace), ["opcheck"])
    assert failing(verdict) == {}
    assert not [n for n in verdict.not_checked if n.check == "opcheck"]


def test_a_kernel_that_the_aot_test_refuses_is_found_beside_results_with_nan(namespace):
    op = logarithm(namespace)
    calls = []

    @op.python(name="kernel")
    def kernel(x):
        calls.append(1)
        return (x.log() + len(calls)).contiguous()

    assert "test_aot_dispatch_dynamic" in failing(verdict_of(op, ["opcheck"]))["opcheck"]


def test_results_that_always_have_nan(namespace):
    @ow.op(f"{namespace}::undefined")
    def undefined(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return x - torch.nan

    undefined.python(lambda x: (x - torch.nan).contiguous(), name="kernel")
    verdict = verdict_of(undefined, ["opcheck"])
    assert failing(verdict) == {}
    assert [n for n in verdict.not_checked if n.check == "opcheck" and "NaN" in n.reason]
    undefined.register_fake(lambda x: x.new_empty(x.numel() + 1))
    wrong = failing(verdict_of(undefined, ["opcheck"]))["opcheck"]
    assert "test_faketensor" in wrong
    assert "hape" in wrong  # the cause, in the text itself
    assert "scroll up" not in wrong
