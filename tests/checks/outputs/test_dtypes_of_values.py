"""If the check "metadata" does not run, "values" looks at dtypes."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.results import Status


@pytest.mark.parametrize("is_random", [False, True])
@pytest.mark.parametrize(("dtype", "expected"), [(torch.float32, Status.PASS), (torch.float64, Status.FAIL)])
def test_another_dtype_fails(namespace: str, is_random: bool, dtype: torch.dtype, expected: Status) -> None:
    def made(x: Tensor) -> Tensor:
        return x + torch.rand_like(x) if is_random else x + 1

    @ow.op(f"{namespace}::made", random=is_random)
    def op(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return made(x)

    op.python(lambda x: made(x).to(dtype), name="kernel")
    (verdict,) = ow.check(op, checks=("values",), device="cpu").verdicts
    assert verdict.status is expected
    assert ("dtype float64, expected float32" in str([f.message for f in verdict.failures])) == (dtype == torch.float64)
