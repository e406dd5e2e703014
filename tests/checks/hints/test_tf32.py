"""Products in TF32: they are named as the cause of what they explain, and allowed where that is stated."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float, Float32
from torch import Tensor

import opwright as ow
from opwright.checks.context import Context
from opwright.checks.derivatives import gradients
from opwright.checks.outputs import values
from opwright.contract.inputs.cases import cases
from opwright.results import Finding, Status
from opwright.target import Target


def rounded(x):
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def cut_off(x):
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def bfloat16(x):
    return x.bfloat16().float()


OPERANDS = {"rounded": rounded, "cut off": cut_off, "bfloat16": bfloat16}


def product(x: Float32[Tensor, "m k"], y: Float32[Tensor, "k n"]) -> Float32[Tensor, "m n"]:
    return (x @ y).relu()


def convolution(x: Float32[Tensor, "b c n"], y: Float32[Tensor, "o c 3"]) -> Float32[Tensor, "b o n-2"]:
    return torch.conv1d(x, y)


def sums(x: Float32[Tensor, "m n"], y: Float32[Tensor, "m n"]) -> Float32[Tensor, "m n"]:
    return x + y


def narrowed(reference, narrow):
    return lambda x, y: reference(narrow(x), narrow(y)).contiguous()


def with_kernels(name, reference, *, where=(), tf32=False):
    op = ow.op(f"tf32::{name}{'_allowed' * tf32}", where=where, tf32=tf32)(reference)
    for kernel, narrow in OPERANDS.items():
        op.python(narrowed(reference, narrow), name=kernel)
    op.python(lambda x, y: reference(x, y) * 1.01, name="a hundredth off")
    return op


PRODUCT, CONVOLUTION, SUMS = (
    with_kernels("product", product),
    with_kernels("convolution", convolution, where="n >= 3"),
    with_kernels("sums", sums),
)
ALLOWED = (
    with_kernels("product", product, tf32=True),
    with_kernels("convolution", convolution, where="n >= 3", tf32=True),
    with_kernels("sums", sums, tf32=True),
)


def checked(op, kernel, check=values.check):
    found = [c for c in cases(op.contract, "quick", longest=140) if not c.values and c.layout == "contiguous"]
    context = Context(op, kernel, Target("cpu"), found[::3])
    return [f for f in check(context) if isinstance(f, Finding)]


@pytest.mark.parametrize("op", [PRODUCT, CONVOLUTION])
@pytest.mark.parametrize("kernel", ["rounded", "cut off"])
def test_tf32_is_named_as_the_cause(op, kernel):
    found = checked(op, kernel)
    assert found[0].status is Status.FAIL
    assert all("as exact as those of TF32" in f.remedy for f in found)


@pytest.mark.parametrize(
    ("op", "kernel"),
    [(PRODUCT, "bfloat16"), (PRODUCT, "a hundredth off"), (CONVOLUTION, "bfloat16"), (SUMS, "rounded")],
)
def test_other_errors_are_not_ascribed_to_it(op, kernel):
    found = checked(op, kernel)
    assert found[0].status is Status.FAIL
    assert not any("TF32" in f.remedy for f in found)


@pytest.mark.parametrize(
    ("op", "kernel", "status"),
    [
        (ALLOWED[0], "rounded", Status.PASS),
        (ALLOWED[0], "cut off", Status.PASS),
        (ALLOWED[0], "bfloat16", Status.FAIL),
        (ALLOWED[0], "a hundredth off", Status.FAIL),
        (ALLOWED[1], "rounded", Status.PASS),
        (ALLOWED[1], "bfloat16", Status.FAIL),
        (ALLOWED[2], "rounded", Status.FAIL),  # it has no product
    ],
)
def test_it_is_allowed_where_that_is_stated(op, kernel, status):
    assert checked(op, kernel)[0].status is status


@pytest.mark.parametrize(("narrow", "status"), [(rounded, Status.PASS), (bfloat16, Status.FAIL)])
@pytest.mark.parametrize("tf32", [True, False])
def test_gradients_follow(narrow, status, tf32):
    op = ow.op("tf32::gradients", tf32=tf32)(plain_product)
    op.python(lambda x, y: x @ y, name="exact")

    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return narrow(grad) @ narrow(y).mT, narrow(x).mT @ narrow(grad)

    op.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    found = checked(op, "exact", gradients.check)
    is_wrong = any(f.status is Status.FAIL for f in found)
    assert is_wrong == (not tf32 or status is Status.FAIL)


def plain_product(x: Float32[Tensor, "m k"], y: Float32[Tensor, "k n"]) -> Float32[Tensor, "m n"]:
    return x @ y


def test_float16_products_are_as_before():
    @ow.op("tf32::half", tf32=True)
    def half(x: Float[Tensor, "m k"], y: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
        return x @ y

    half.python(lambda x, y: (x.float() @ y.float() * 1.004).to(x.dtype), name="off", dtypes=[torch.float16])
    assert checked(half, "off")[0].status is Status.FAIL
    assert half.contract.fingerprint != ow.op("tf32::half")(half.contract.function).contract.fingerprint
