"""The gradients of the check "torch.compile": right ones that are not the eager ones, and wrong ones."""

from __future__ import annotations

from typing import Annotated

import pytest
import torch
from jaxtyping import Float16, Float32
from torch import Tensor

import opwright as ow


def status_of(operator):
    (verdict,) = ow.check(operator, checks=["torch.compile"], kernels=["kernel"], level="quick").verdicts
    return verdict.status, verdict.findings


@ow.op("compiled_gradients::product")
def product(x: Annotated[Float16[Tensor, "b c n"], ow.values(-3, 3)]) -> Float16[Tensor, ""]:
    return x.prod()


product.python(lambda x: x.float().prod().half(), name="kernel")


def squares(name, factor_in_compile):
    @ow.op(f"compiled_gradients::{name}")
    def squares(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return x * x

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        factor = factor_in_compile if torch.compiler.is_compiling() else 2.0
        return factor * g * x

    squares.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    squares.python(lambda x: x * x, name="kernel")
    return squares


right, wrong = squares("right", 2.0), squares("wrong", 2.1)


def test_a_gradient_that_overflows_may_be_infinite_where_the_eager_one_is_undefined():
    status, findings = status_of(product)
    assert status == "pass", findings


@pytest.mark.parametrize(("operator", "status"), [(right, "pass"), (wrong, "fail")])
def test_a_gradient_that_is_another_one_within_torch_compile_is_found(operator, status):
    found, findings = status_of(operator)
    assert found == status, findings
    assert status == "pass" or "the compiled gradient differs from the eager one" in findings[0].message
