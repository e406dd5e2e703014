"""Arguments of which the author states that they get no gradient."""

from __future__ import annotations

from typing import Annotated

import pytest
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

import opwright as ow
from opwright.checks.context import Context
from opwright.checks.derivatives import gradients, own_backward, second_derivatives
from opwright.contract.inputs.cases import cases
from opwright.results import Finding, NotChecked, Origin, Status
from opwright.target import Target


@ow.op("no_gradient::scaled")
def scaled(x: Float[Tensor, " n"], scale: Annotated[Float[Tensor, " n"], ow.no_gradient]) -> Float[Tensor, " n"]:
    return x * x * scale


@scaled.python(name="plain")
def _(x, scale):
    return (x * x * scale).contiguous()


def pair(n=3):
    return torch.arange(1.0, n + 1, requires_grad=True), torch.full((n,), 2.0, requires_grad=True)


def both_gradients(function):
    x, scale = pair()
    return torch.autograd.grad(function(x, scale).sum(), (x, scale), allow_unused=True)


def test_the_derived_gradient_is_none():
    for _ in range(4):  # the first calls are learned from, and the next ones take what was recorded
        of_x, of_scale = both_gradients(scaled)
        assert of_x.tolist() == [4, 8, 12]
        assert of_scale is None
    assert both_gradients(torch.compile(scaled, backend="aot_eager", fullgraph=True))[1] is None


def test_second_derivatives_follow():
    x, scale = pair()
    (first,) = torch.autograd.grad(scaled(x, scale).sum(), x, create_graph=True)
    of_x, of_scale = torch.autograd.grad(first.sum(), (x, scale), allow_unused=True)
    assert of_x.tolist() == [4, 4, 4]
    assert of_scale is None


def test_transforms_agree_with_a_detached_reference():
    x, scale = (t.detach() for t in pair())
    of_scale = torch.func.grad(lambda scale: scaled(x, scale).sum())(scale)
    assert of_scale.tolist() == [0, 0, 0]
    _, tangent = torch.func.jvp(lambda scale: scaled(x, scale), (scale,), (torch.ones(3),))
    assert tangent.tolist() == [0, 0, 0]
    assert torch.func.grad(lambda x: scaled(x, scale).sum())(x).tolist() == [4, 8, 12]


def test_values_and_fakes_are_as_without_it():
    x, scale = pair()
    assert torch.equal(scaled(x, scale), x * x * scale)
    assert scaled.overload(x.to("meta"), scale.to("meta")).shape == (3,)
    assert "scale: Float[n], no gradient" in repr(scaled)
    assert scaled.parts["autograd"].how.endswith("none for 'scale' (ow.no_gradient)")


@ow.op("no_gradient::half")
def half(x: Float[Tensor, " n"], scale: Annotated[Float[Tensor, " n"], ow.no_gradient]) -> Float[Tensor, " n"]:
    return x * x * scale


@half.python(name="plain")
def _(x, scale):
    return (x * x * scale).contiguous()


def saves(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def returns_none(ctx, grad):
    x, scale = ctx.saved_tensors
    return 2 * x * scale * grad, None


def returns_both(ctx, grad):
    x, scale = ctx.saved_tensors
    return 2 * x * scale * grad, x * x * grad


def is_wrong(ctx, grad):
    x, scale = ctx.saved_tensors
    return 3 * x * scale * grad, None


@ow.op("no_gradient::half_backward")
def half_backward(grad: Float[Tensor, " n"], x: Float[Tensor, " n"], scale: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return 2 * x * scale * grad


def checked(check, op=half, kernel="plain"):
    context = Context(op, kernel, Target("cpu"), cases(op.contract, "quick", longest=40)[:40])
    return list(check(context))


@pytest.mark.parametrize("backward", [returns_none, returns_both, half_backward])
def test_a_custom_backward_without_it_is_right(backward):
    half.register_autograd(backward, **({} if backward is half_backward else {"setup_context": saves}))
    assert both_gradients(half)[1] is None
    for check in (gradients.check, second_derivatives.check):
        found = checked(check)
        assert not [f for f in found if isinstance(f, Finding) and f.status is not Status.PASS]


def test_a_wrong_custom_backward_is_found():
    half.register_autograd(is_wrong, setup_context=saves)
    found = [f for f in checked(gradients.check) if isinstance(f, Finding)]
    assert found[0].status is Status.FAIL
    assert "the gradient of 'x' is wrong" in found[0].message


def test_the_report_says_that_it_is_declared():
    (note,) = [f for f in checked(gradients.check, scaled) if isinstance(f, NotChecked)]
    assert note.why == "none for 'scale', as ow.no_gradient states"


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return (x * x * scale).contiguous()

    backward = staticmethod(returns_none)


@scaled.python(name="with a backward")
def _(x, scale):
    return _Own.apply(x, scale)


def test_a_backward_of_a_kernel_that_returns_none_is_right():
    found = [f for f in checked(own_backward.check, scaled, "with a backward") if isinstance(f, Finding)]
    assert [f.status for f in found] == [Status.WARNING]  # calls do not use it


@ow.op("no_gradient::nothing")
def nothing(
    x: Annotated[Float[Tensor, " n"], ow.no_gradient], all: Annotated[list[Float32[Tensor, " n"]], ow.no_gradient]
) -> Float[Tensor, " n"]:
    return x + sum(all)


def test_an_operator_without_any_gradient_says_so():
    part = nothing.parts["autograd"]
    assert (part.origin, part.how) == (Origin.MISSING, "every floating argument is marked ow.no_gradient")
    x, *listed = (torch.ones(2, requires_grad=True) for _ in range(3))
    found = torch.autograd.grad(nothing(x, listed).sum(), (x, *listed), allow_unused=True)
    assert found == (None, None, None)


@pytest.mark.parametrize(
    ("annotation", "got"),
    [
        (Annotated[Int64[Tensor, " n"], ow.no_gradient], "got Int64"),
        (Annotated[float, ow.no_gradient], "got float"),
        (Annotated[Float[Tensor, " n"], ow.no_gradient, ow.mutated], "got a mutated argument"),
    ],
)
def test_marks_without_meaning_are_refused(annotation, got):
    def f(x, y):
        return x + y

    f.__annotations__ = {"x": Float[Tensor, " n"], "y": annotation, "return": Float[Tensor, " n"]}
    with pytest.raises(ow.errors.ContractError, match="must be a floating tensor that is only read, " + got):
        ow.op("no_gradient::refused")(f)


def test_the_digest_of_a_contract_has_it():
    def f(x: Float[Tensor, " n"], scale: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * x * scale

    plain = ow.op("no_gradient::digest")(f).contract.fingerprint
    f.__annotations__["scale"] = Annotated[Float[Tensor, " n"], ow.no_gradient]
    assert ow.op("no_gradient::digest")(f).contract.fingerprint != plain
