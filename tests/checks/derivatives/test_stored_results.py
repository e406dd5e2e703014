"""A registered gradient may read the operator's result in its own dtype, as FlashAttention does; no less precise."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.results import Status


def _operator(name, result=lambda out: out, delta=1.0):
    """Attention whose gradient subtracts the sum of the incoming gradient times the result."""

    @ow.op(f"stored_results::{name}", where=["1 <= n", "1 <= m"])
    def attend(q: Float[Tensor, "n 32"], k: Float[Tensor, "m 32"], v: Float[Tensor, "m 32"]) -> Float[Tensor, "n 32"]:
        return (torch.softmax(q.float() @ k.float().mT, -1) @ v.float()).to(q.dtype)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    def gradient(ctx, grad):
        q, k, v, out = (t.float() for t in ctx.saved_tensors)
        above, weights = grad.float(), torch.softmax(q @ k.mT, -1)
        along = delta * (above * result(out)).sum(-1, keepdim=True)
        change = weights * (above @ v.mT - along)
        found = (change @ k, change.mT @ q, weights.mT @ above)
        return tuple(t.to(grad.dtype) for t in found)

    attend.register_autograd(gradient, setup_context=keep)

    @attend.python(name="plain")
    def plain(q, k, v):
        return (torch.softmax(q.float() @ k.float().mT, -1) @ v.float()).to(q.dtype)

    return attend


RIGHT = _operator("right")
LOW = _operator("low", result=lambda out: out.to(torch.float8_e4m3fn).float())
OFF = _operator("off", delta=1.01)


def _verdict(operator: ow.Op, dtype: str) -> Status:
    case = f"n=40 m=50 dtype={dtype} layout=contiguous"
    (verdict,) = ow.check(operator, kernels=["plain"], device="cpu", checks=["gradients"], case=case).verdicts
    return next(f.status for f in verdict.findings if f.check == "gradients")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gradient_may_read_the_stored_result(dtype: str) -> None:
    assert _verdict(RIGHT, dtype) is Status.PASS


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("operator", [LOW, OFF], ids=["low", "off"])
def test_less_precision_and_another_factor_are_wrong(operator: ow.Op, dtype: str) -> None:
    assert _verdict(operator, dtype) is Status.FAIL
