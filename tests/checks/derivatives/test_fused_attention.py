"""Where a reference calls torch's fused attention, kernels may round the weights, as FlashAttention does; no more."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.results import Status


@ow.op("fused_attention::attend")
def attend(
    q: Float[Tensor, "b h n 32"], k: Float[Tensor, "b g m 32"], v: Float[Tensor, "b g m 32"]
) -> Float[Tensor, "b h n 32"]:
    if not k.shape[1] or q.shape[1] % k.shape[1] or not k.shape[2]:
        raise ValueError("heads are in groups, and there are keys")
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def _scores(q: Tensor, k: Tensor, seen: int = 0) -> Tensor:
    scores = q.float() @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).float().mT * q.shape[-1] ** -0.5
    return scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(seen), -torch.inf)


def _product(weights: Tensor, v: Tensor) -> Tensor:
    return weights.float() @ v.repeat_interleave(weights.shape[1] // v.shape[1], 1).float()


@attend.python(dtypes=[torch.float16, torch.bfloat16])
def rounds_weights(q, k, v):
    return _product(_scores(q, k).softmax(-1).to(q.dtype), v).to(q.dtype).contiguous()


@attend.python(dtypes=[torch.float16])
def weights_of_bfloat16(q, k, v):
    return _product(_scores(q, k).softmax(-1).bfloat16(), v).to(q.dtype).contiguous()


@attend.python(dtypes=[torch.float16])
def half_sums(q, k, v):
    weights = _scores(q, k).softmax(-1).half()
    values, total = v.repeat_interleave(q.shape[1] // k.shape[1], 1), torch.zeros_like(q)
    for j in range(k.shape[2]):
        total = total + weights[..., j : j + 1] * values[..., j : j + 1, :]
    return total


@attend.python(dtypes=[torch.float16])
def sees_the_next_key(q, k, v):
    return _product(_scores(q, k, seen=1).softmax(-1), v).to(q.dtype).contiguous()


def _verdict(kernel: str, layout: str = "contiguous") -> Status:
    case = f"b=1 h=4 n=70 g=2 m=70 dtype=float16 layout={layout}"
    (verdict,) = ow.check(attend, kernels=[kernel], device="cpu", checks=["values"], case=case).verdicts
    return next(f.status for f in verdict.findings if f.check == "values")


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])  # torch takes another way for each
def test_weights_in_the_inputs_dtype_are_right(layout: str) -> None:
    assert _verdict("rounds_weights", layout) is Status.PASS


@pytest.mark.parametrize("kernel", ["weights_of_bfloat16", "half_sums", "sees_the_next_key"])
def test_less_precision_and_other_keys_are_wrong(kernel: str) -> None:
    assert _verdict(kernel) is Status.FAIL
