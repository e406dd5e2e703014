"""A candidate may refuse sizes that its task does not have, also with the first call; one that refuses all fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from opwright.checks.exceptions import Raised, is_refusal
from opwright.judged.run import judge
from opwright.results import Status

_PROBLEM = """
import torch
from torch import nn
rows = 4
columns = 32
class Model(nn.Module):
    def forward(self, x): return torch.softmax(x, 1)
def get_inputs(): return [torch.randn(rows, columns)]
def get_init_inputs(): return []
"""
_CANDIDATE = """
import torch
from torch import nn
class ModelNew(nn.Module):
    def forward(self, x):
        if CONDITION: raise ValueError("columns")
        e = (x - x.amax(1, keepdim=True)).exp()
        return e / e.sum(1, keepdim=True)
"""


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("KernelError", "Triton does not compile f: arange's range must be a power of 2", True),
        ("CompilationError", "at 3:4", True),
        ("ValueError", "columns must be a multiple of 32", True),
        ("KernelError", "the candidate must have the reference's parameters", False),
        ("SimulatorError", "f on the simulator: 1 finding", False),
        ("AcceleratorError", "CUDA error: an illegal memory access was encountered", False),
        ("TypeError", "f() takes no argument", False),
    ],
)
def test_which_exceptions_refuse_a_size(kind: str, text: str, expected: bool) -> None:
    assert is_refusal(Raised(kind, text)) is expected


@pytest.mark.slow  # whole checks
def test_a_candidate_may_refuse_inference_mode_and_must_not_be_wrong_in_it(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(_PROBLEM)
    mode = "torch.is_inference_mode_enabled()"
    texts = {
        "refuses": _CANDIDATE.replace("CONDITION", mode),
        "wrong": _CANDIDATE.replace('if CONDITION: raise ValueError("columns")', f"x = x * (2 if {mode} else 1)"),
        "lazy": _CANDIDATE.replace("CONDITION", "False").replace(
            "return e / e.sum(1, keepdim=True)", "return (e / e.sum(1, keepdim=True)).as_subclass(Lazy)"
        )
        + "class Lazy(torch.Tensor): pass\n",
        "needs_a_gpu": _CANDIDATE.replace('if CONDITION: raise ValueError("columns")', "torch.cuda.Stream()"),
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    candidates = [tmp_path / f"{name}.py" for name in texts]
    report = judge(tmp_path / "problem.py", *candidates, checks=["values", "execution context"])
    found = {Path(row.candidate).stem: row for row in report.rows}
    assert {name: row.status for name, row in found.items()} == {
        "refuses": Status.PASS, "wrong": Status.FAIL, "lazy": Status.FAIL,
        "needs_a_gpu": Status.PASS if torch.cuda.is_available() else Status.REFUSED,
    }  # fmt: skip
    assert "a result must be a torch.Tensor, got a Lazy" in found["lazy"].worst.message  # type: ignore[union-attr]


@pytest.mark.slow  # whole checks
def test_a_candidate_may_refuse_other_sizes_than_the_task_s(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(_PROBLEM)
    conditions = {"multiples": "x.shape[1] % 32", "none": "True", "unknown": "x.shape[1] != columns"}
    for name, condition in conditions.items():
        (tmp_path / f"{name}.py").write_text(_CANDIDATE.replace("CONDITION", condition))
    candidates = [tmp_path / f"{name}.py" for name in conditions]
    report = judge(tmp_path / "problem.py", *candidates, checks=["values"])
    found = {Path(row.candidate).stem: row.status for row in report.rows}
    assert found["multiples"] in (Status.PASS, Status.THIN)
    # KernelBench runs a candidate after the problem, in the same names, which have the sizes of the call.
    assert found["unknown"] is Status.PASS
    assert found["none"] is Status.FAIL


@pytest.mark.slow  # whole checks
def test_a_candidate_for_large_inputs_may_refuse_the_smaller_ones_that_stand_for_them(tmp_path: Path) -> None:
    large = _PROBLEM.replace("rows = 4", "rows = 640").replace("columns = 32", "columns = 512")
    (tmp_path / "problem.py").write_text(large)
    texts = {
        "for_its_sizes": _CANDIDATE.replace("CONDITION", "tuple(x.shape) != (640, 512)"),
        "wrong_for_its_sizes": _CANDIDATE.replace("CONDITION", "tuple(x.shape) != (640, 512)").replace(
            "return e /", "return 1.01 * e /"
        ),
        "refuses_its_sizes": _CANDIDATE.replace("CONDITION", "tuple(x.shape) == (640, 512)"),
        "none": _CANDIDATE.replace("CONDITION", "True"),
        "wrong_elsewhere": _CANDIDATE.replace("CONDITION", "False").replace(
            "return e /", "return (1 if tuple(x.shape) == (640, 512) else 1.01) * e /"
        ),
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    candidates = [tmp_path / f"{name}.py" for name in texts]
    report = judge(tmp_path / "problem.py", *candidates, checks=["values", "published rule"])
    found = {Path(row.candidate).stem: row.status for row in report.rows}
    assert found["for_its_sizes"] in (Status.PASS, Status.THIN), report.rows
    assert {name: status for name, status in found.items() if name != "for_its_sizes"} == dict.fromkeys(
        ("wrong_for_its_sizes", "refuses_its_sizes", "none", "wrong_elsewhere"), Status.FAIL
    )
