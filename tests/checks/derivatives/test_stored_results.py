"""A registered gradient may read the operator's result in its own dtype, as FlashAttention does; no less precise."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import BFloat16, Float
from torch import Tensor

import opwright as ow
from opwright.results import Status


def _attention(q, k, v, dtype):
    return (torch.softmax(q.float() @ k.float().mT, -1) @ v.float()).to(dtype)


def _operator(name, result=lambda out: out, delta=1.0, precision=torch.float32, half_only=False):
    """Attention whose gradient subtracts the sum of the incoming gradient times the result."""
    if half_only:

        @ow.op(f"stored_results::{name}_of_half", where=["1 <= n", "1 <= m"])
        def attend(
            q: BFloat16[Tensor, "n 32"], k: BFloat16[Tensor, "m 32"], v: BFloat16[Tensor, "m 32"]
        ) -> BFloat16[Tensor, "n 32"]:
            return _attention(q, k, v, torch.bfloat16)
    else:

        @ow.op(f"stored_results::{name}", where=["1 <= n", "1 <= m"])
        def attend(
            q: Float[Tensor, "n 32"], k: Float[Tensor, "m 32"], v: Float[Tensor, "m 32"]
        ) -> Float[Tensor, "n 32"]:
            return _attention(q, k, v, q.dtype)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    def gradient(ctx, grad):
        q, k, v, out = (t.float() for t in ctx.saved_tensors)
        above, weights = grad.float(), torch.softmax(q @ k.mT, -1)
        along = delta * (above * result(out)).sum(-1, keepdim=True)
        change = (weights * (above @ v.mT - along)).to(precision).float()
        found = (change @ k, change.mT @ q, weights.mT @ above)
        return tuple(t.to(grad.dtype) for t in found)

    attend.register_autograd(gradient, setup_context=keep)

    @attend.python(name="plain")
    def plain(q, k, v):
        return _attention(q, k, v, q.dtype)

    return attend


RIGHT, RIGHT_HALF = (_operator("right", half_only=half) for half in (False, True))
WRONG = {
    f"{name}{'_of_half' * half}": _operator(name, half_only=half, **fault)
    for name, fault in {
        "low": {"result": lambda out: out.to(torch.float8_e4m3fn).float()},
        "off": {"delta": 1.01},
        "lower": {"precision": torch.float8_e5m2},
        "other": {"result": lambda out: out.roll(1, 0)},
        "none": {"delta": 0.0},
    }.items()
    for half in (False, True)
}


def _verdict(operator: ow.Op, dtype: str, n: int = 40, m: int = 50) -> Status:
    case = f"n={n} m={m} dtype={dtype} layout=contiguous"
    if operator is RIGHT_HALF or operator.contract.name.endswith("_of_half"):
        case = case.replace("dtype=bfloat16 ", "")
    (verdict,) = ow.check(operator, kernels=["plain"], device="cpu", checks=["gradients"], case=case).verdicts
    return next(f.status for f in verdict.findings if f.check == "gradients")


# In float32, too, each element of a row has the error of what is subtracted.
@pytest.mark.parametrize(("n", "m"), [(40, 50), (128, 7)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_gradient_may_read_the_stored_result(dtype: str, n: int, m: int) -> None:
    assert _verdict(RIGHT, dtype, n, m) is Status.PASS


@pytest.mark.parametrize(("n", "m"), [(40, 50), (128, 7)])
def test_that_of_an_operator_of_one_half_dtype_as_well(n: int, m: int) -> None:
    assert _verdict(RIGHT_HALF, "bfloat16", n, m) is Status.PASS


@pytest.mark.parametrize("name", WRONG)
def test_less_precision_and_another_factor_are_wrong(name: str) -> None:
    for dtype in ("bfloat16",) if name.endswith("_of_half") else ("float32", "float16", "bfloat16"):
        assert _verdict(WRONG[name], dtype) is Status.FAIL
