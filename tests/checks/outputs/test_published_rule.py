"""The rule of a published format, with its tolerances and its dtypes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from opwright.checks.outputs.published_rule import wrong_by
from opwright.contract.own_inputs import Rule

RULE = Rule("kernelbench", 1e-4, 1e-4, of_half=1e-2)


@pytest.mark.parametrize(
    ("got", "expected", "said"),
    [
        (torch.ones(2), torch.ones(2), ""),
        (torch.ones(2) + 1e-3, torch.ones(2), "output 0 is beyond atol=0.0001, rtol=0.0001"),
        (torch.ones(2).half() + 4e-3, torch.ones(2).half(), ""),
        (torch.ones(2).bfloat16() + 0.05, torch.ones(2).bfloat16(), "output 0 is beyond atol=0.01, rtol=0.01"),
        (torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.int64), "must have the dtype int64, got int32"),
        (torch.ones(2).double(), torch.ones(2), "must have the dtype float32, got float64"),
        (torch.ones(1), torch.ones(2), "must have the shape"),
    ],
)
def test_what_the_rule_finds(got: torch.Tensor, expected: torch.Tensor, said: str) -> None:
    found = wrong_by(RULE, cast(Any, SimpleNamespace(outputs=(got,), expected=(expected,))))
    assert said in found
    assert bool(found) == bool(said)
