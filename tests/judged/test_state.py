"""Buffers get the values that their constructor makes, and those that training updates get any."""

from __future__ import annotations

from pathlib import Path

import pytest

from opwright.judged.run import judge
from opwright.results import Status

PROBLEM = """
import torch
from torch import nn
n = 16
m = 8
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("mask", torch.ones(n, n).tril())
        self.register_buffer("packed", torch.randint(0, 16, (n, n), dtype=torch.uint8))
        self.register_buffer("mean", torch.zeros(n))
    def forward(self, x):
        return (x - self.mean) @ (self.mask * (self.packed.float() - 8))
def get_inputs(): return [torch.randn(m, n)]
def get_init_inputs(): return [n]
"""
CANDIDATE = PROBLEM.partition("def get_inputs")[0].replace("Model", "ModelNew")


@pytest.mark.slow  # whole checks
def test_a_mask_and_packed_weights_are_those_of_the_constructor(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(PROBLEM)
    for name, old, new in (
        ("knows_the_mask", "self.mask * (self", "torch.tril(self.packed.float() - 8) if True else (self"),
        ("ignores_the_mean", "x - self.mean", "x"),
        ("ignores_packed", "self.packed.float() - 8", "self.packed.float() * 0"),
    ):
        (tmp_path / f"{name}.py").write_text(CANDIDATE.replace(old, new))
    candidates = sorted(f for f in tmp_path.glob("*.py") if f.name != "problem.py")
    report = judge(tmp_path / "problem.py", *candidates, write_contract=tmp_path / "contract", checks=["values"])
    found = {Path(row.candidate).stem: row.status for row in report.rows}
    assert found == {"knows_the_mask": Status.PASS, "ignores_the_mean": Status.FAIL, "ignores_packed": Status.FAIL}
    text = (tmp_path / "contract" / "judged_problem.py").read_text()
    assert "drawn_by(task.drawn_state('mask'))" in text
    assert "drawn_state('mean')" not in text
