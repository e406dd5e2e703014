"""A finding of gradients names what is wrong, and who did it."""

from __future__ import annotations

import pytest
from jaxtyping import Float32
from torch import Tensor

import opwright as ow


def times(namespace: str, kernel, backward=None) -> str:
    @ow.op(f"{namespace}::times")
    def times(x: Float32[Tensor, " n"], y: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return x * y

    times.python(kernel, name="kernel")
    if backward is not None:
        times.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    (verdict,) = ow.check(times, checks=["gradients"], level="smoke").verdicts
    return "\n".join(f.message for f in verdict.failures)


def right(x, y):
    return x * y


def writes_x(x, y):
    out = x * y
    x.zero_()
    return out


def right_backward(ctx, grad):
    x, y = ctx.saved_tensors
    return grad * y, grad * x


def backward_that_writes_y(ctx, grad):
    x, y = ctx.saved_tensors
    gradients = grad * y, grad * x
    y.detach().zero_()
    return gradients


@pytest.mark.parametrize("backward", [None, right_backward])
def test_a_forward_that_writes_is_named(namespace, backward):
    message = times(namespace, writes_x, backward)
    assert "the forward wrote an input, not the backward: argument 'x' was written" in message


def test_a_backward_that_writes_is_named(namespace):
    message = times(namespace, right, backward_that_writes_y)
    assert "the backward wrote argument 'y'" in message
    assert "forward" not in message


@pytest.mark.parametrize("backward", [None, right_backward])
def test_right_ones_are_left_alone(namespace, backward):
    assert not times(namespace, right, backward)
