"""Models with more parameters and buffers than an operator has arguments: the others are the constructor's."""

from __future__ import annotations

from pathlib import Path

import pytest

from opwright.judged.run import judge
from opwright.results import Status

_PROBLEM = """
import torch
from torch import nn
rows = 6
width = 8
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)
    def forward(self, x): return x + torch.relu(self.norm(self.linear(x)))
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width) for _ in range(15)))
        self.register_buffer("shift", torch.arange(float(width)))
        self.last = nn.Linear(width, 5)
    def forward(self, x): return self.last(self.blocks(x) + self.shift)
def get_inputs(): return [torch.randn(rows, width)]
def get_init_inputs(): return [width]
"""
_LAST = "return self.last(self.blocks(x) + self.shift)"
_CANDIDATE = _PROBLEM.replace("class Model(", "class ModelNew(")


@pytest.mark.slow  # whole checks
def test_what_is_no_argument_is_the_same_for_the_candidate(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(_PROBLEM)
    drawing = "        super().__init__()\n        torch.rand(3)\n"
    texts = {
        "right": _CANDIDATE,
        "other_order": _CANDIDATE.replace("        super().__init__()\n", drawing),
        "wrong_last": _CANDIDATE.replace(_LAST, _LAST.replace("self.shift)", "self.shift) - self.last.bias")),
        "wrong_buffer": _CANDIDATE.replace(" + self.shift)", ")"),
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    candidates = [tmp_path / f"{name}.py" for name in texts]
    report = judge(tmp_path / "problem.py", *candidates, checks=["values", "published rule"])
    found = {Path(row.candidate).stem: row for row in report.rows}
    right = {name for name, row in found.items() if row.status in (Status.PASS, Status.THIN, Status.WARNING)}
    assert right == {"right", "other_order"}, report.rows
    assert {row.status for name, row in found.items() if name not in right} == {Status.FAIL}
    assert {row.by_rule for name, row in found.items() if name in right} == {"correct"}
