"""A product of an operand that the reference converts to a narrow dtype, and one that it computes."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import BFloat16, UInt8
from torch import Tensor

import opwright as ow
from opwright.checks.comparison.operations import recorded
from opwright.results import Status


@ow.op("mixed_products::dequantized")
def dequantized(
    x: BFloat16[Tensor, "m k"], w: UInt8[Tensor, "k n"], scale: BFloat16[Tensor, " n"]
) -> BFloat16[Tensor, "m n"]:
    return x.to(torch.bfloat16) @ (w.to(torch.bfloat16) * scale)


@dequantized.python(name="in float32")
def _(x, w, scale):
    return (x.float() @ (w.to(torch.bfloat16) * scale).float()).bfloat16()


@dequantized.python(name="scales afterwards")
def _(x, w, scale):
    return ((x.float() @ w.float()) * scale.float()).bfloat16()


@dequantized.python(name="without the last row")
def _(x, w, scale):
    return (x[:, :-1].float() @ (w.to(torch.bfloat16) * scale).float()[:-1]).bfloat16()


def heads_last(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Tensors with heads after tokens: torch copies and reshapes both before it multiplies."""
    return (weights.softmax(-1) @ x.transpose(1, 2).float()).transpose(1, 2)


def heads_first(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return weights.softmax(-1) @ x.float()


@pytest.mark.parametrize(("product", "shape"), [(heads_first, (2, 3, 5, 4)), (heads_last, (2, 5, 3, 4))])
def test_what_only_moves_is_no_rounding_between_a_conversion_and_a_product(product, shape) -> None:
    """So that a kernel may take the weights in the dtype of x, and has no error more."""
    x, weights = torch.randn(shape).half(), torch.randn(2, 3, 5, 5)
    found = recorded(lambda: product(x, weights))
    (position,) = (i for i, (name, _) in enumerate(found.rounding) if "bmm" in name)
    assert found.narrow_operands == {position: {0: torch.finfo(torch.float16).eps}}
    assert not any("view" in name for name, _ in found.rounding)


@pytest.mark.slow  # whole checks
def test_it_is_computed_in_float64_and_with_less_precision() -> None:
    report = ow.check(dequantized, device="cpu", checks=["contract", "values"], case="m=33 k=65 n=17")
    verdicts = {v.kernel: v for v in report.verdicts}
    assert verdicts["in float32"].status is Status.PASS, verdicts["in float32"].findings
    assert verdicts["without the last row"].status is Status.FAIL
    for verdict in verdicts.values():
        assert not any("the check itself failed" in f.message for f in verdict.findings)
