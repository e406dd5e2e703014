"""Candidates get arguments in the task's own layout, and return its dtypes; code for a CPU does not hide a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from opwright.judged.run import judge
from opwright.results import Status

pytestmark = [pytest.mark.triton, pytest.mark.slow]  # whole checks of candidates

REFERENCE = """
import torch
rows = 96
cols = 128
def reference(x, w): return torch.sigmoid(x) * w
def largest(x, w): return (x * w).argmax(-1)
def get_inputs(): return [INPUT, torch.randn(cols)]
"""
CANDIDATE = """
import torch, triton, triton.language as tl
@triton.jit
def kernel(x, w, y, n, cols, sr, sc, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, col = at // cols, at % cols
    v = tl.sigmoid(tl.load(x + row * sr + col * sc, mask=at < n)) * tl.load(w + col, mask=at < n)
    tl.store(y + at, v FACTOR, mask=at < n)
def scaled(x, w, steps):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n = x.numel()
    if n: kernel[(triton.cdiv(n, 256),)](x, w, y, n, x.shape[1], *steps, BLOCK=256)
    return y
def by_strides(x, w): return scaled(x, w, x.stride())
def as_rows(x, w): return scaled(x, w, (x.shape[1], 1))
def as_columns(x, w): return scaled(x, w, (1, x.shape[0]))
def on_gpu(x, w):
    assert x.device.type == "cuda" and w.get_device() >= 0
    return scaled(x, w, x.stride())
def elsewhere(x, w):
    if CONDITION: return torch.sigmoid(x) * w
    return scaled(x, w, x.stride())
def index(x, w): return (x * w).argmax(-1)
def narrow_index(x, w): return (x * w).argmax(-1).int()
"""
ROWS, COLUMNS = "torch.randn(rows, cols)", "torch.randn(cols, rows).t()"


def status(folder: Path, name: str, made: str = ROWS, reference: str = "reference", **replaced: str) -> Status:
    (folder / "ref.py").write_text(REFERENCE.replace("INPUT", made))
    text = CANDIDATE.replace("FACTOR", replaced.get("factor", "")).replace(
        "CONDITION", replaced.get("condition", "False")
    )
    (folder / "ours.py").write_text(text)
    (row,) = judge(f"{folder}/ref.py:{reference}", f"{folder}/ours.py:{name}").rows
    return row.status


@pytest.mark.parametrize(
    ("name", "made", "expected"),
    [
        ("by_strides", COLUMNS, Status.PASS),
        ("as_columns", COLUMNS, Status.PASS),
        ("as_rows", COLUMNS, Status.FAIL),
        ("as_rows", ROWS, Status.PASS),
        ("as_rows", "torch.randn(rows, 2 * cols)[:, :cols]", Status.FAIL),
        ("by_strides", "torch.randn(rows, 2 * cols)[:, :cols]", Status.PASS),
    ],
)
def test_a_candidate_gets_the_layout_of_the_task(tmp_path: Path, name: str, made: str, expected: Status) -> None:
    assert status(tmp_path, name, made) is expected


@pytest.mark.parametrize(("name", "expected"), [("index", Status.WARNING), ("narrow_index", Status.FAIL)])
def test_results_have_the_dtype_of_the_reference(tmp_path: Path, name: str, expected: Status) -> None:
    assert status(tmp_path, name, reference="largest") is expected  # the right one leaves its work to torch


@pytest.mark.parametrize(
    "condition", ['x.device.type != "cuda"', 'str(x.device) == "cpu"', "not torch.cuda.is_available()"]
)
def test_a_wrong_kernel_behind_a_question_for_the_device_is_found(tmp_path: Path, condition: str) -> None:
    assert status(tmp_path, "elsewhere", factor="+ 0.001", condition=condition) is Status.FAIL
    assert status(tmp_path, "on_gpu") is Status.PASS
