"""``ow.judge`` on candidates in public formats: wrong ones fail, right ones pass, and what is no task is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opwright.errors import TargetError
from opwright.judged.formats import read_tasks
from opwright.judged.run import judge
from opwright.results import Status
from tests.judged.programs import SOFTMAX, softmax_candidate

RIGHT = """
def ours(x, weight):
    return (x * x.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt()) * weight
def in_half(x, weight):
    return ours(x.half(), weight.half()).float()
def first_rows(x, weight):
    out = ours(x, weight)
    out[1000:] = 0
    return out
"""
REFERENCE = """
import torch
rows, columns = 8, 4096
tokens = 32
width = 1024
def rms_norm(x, weight):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)
def get_inputs():
    return [torch.randn(tokens, width), torch.rand(width)]
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """KernelBench's folders: one problem, a right and two wrong candidates, and their recorded results."""
    problems, run = tmp_path / "KernelBench" / "level1", tmp_path / "runs" / "mine"
    problems.mkdir(parents=True)
    run.mkdir(parents=True)
    (problems / "23_Softmax.py").write_text(SOFTMAX)
    candidates = [softmax_candidate(), softmax_candidate(barrier=""), softmax_candidate(end="min(dim, 1024)")]
    for i, text in enumerate(candidates):
        (run / f"level_1_problem_23_sample_{i}_kernel.py").write_text(text)
    rows = [{"sample_id": i, "compiled": True, "correctness": i != 1} for i in range(3)]
    (run / "eval_results.json").write_text(json.dumps({"23": rows}))
    return tmp_path / "runs"


def test_folders_of_kernelbench_are_read_with_their_recorded_results(runs: Path) -> None:
    (task,), unread = read_tasks([str(runs)], runs)
    assert (task.name, task.format, task.file.name) == ("level1_23_softmax", "kernelbench", "23_Softmax.py")
    assert [(c.name, c.claimed) for c in task.candidates] == [
        ("mine_0", "correct"), ("mine_1", "wrong"), ("mine_2", "correct"),
    ]  # fmt: skip
    assert not unread


def test_a_candidate_without_a_problem_is_said(runs: Path) -> None:
    (runs / "mine" / "level_3_problem_1_sample_0_kernel.py").write_text(softmax_candidate())
    tasks, unread = read_tasks([str(runs)], runs)
    assert len(tasks) == 1
    assert unread[0][0].endswith("level_3_problem_1_sample_0_kernel.py")
    assert "no problem belongs to it" in unread[0][1]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["missing.py"], "must be a file or a folder that exists, got .missing"),
        (["a.py:f", "b.py:g"], "must be a Python file and a function in it"),
    ],
)
def test_what_is_no_task_is_refused(tmp_path: Path, paths: list[str], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        read_tasks(paths, tmp_path)


@pytest.mark.slow  # whole checks of three CUDA kernels in the simulator
@pytest.mark.compiler
def test_wrong_candidates_fail_and_right_ones_pass(runs: Path) -> None:
    report = judge(runs, device="cpu-sim", checks=["values"])
    found = {Path(row.candidate).stem[-8]: row for row in report.rows}
    assert found["0"].status is Status.PASS, found["0"].verdict
    assert found["1"].status is Status.FAIL
    assert "race" in found["1"].worst.message  # type: ignore[union-attr]
    assert found["2"].status is Status.FAIL
    assert [row.candidate for row in report.disagreements] == [found["2"].candidate]
    assert not report.passed


@pytest.mark.slow  # whole checks
def test_pairs_of_functions(tmp_path: Path) -> None:
    (tmp_path / "ref.py").write_text(REFERENCE)
    (tmp_path / "ours.py").write_text(RIGHT)
    pairs = [f"{tmp_path}/ours.py:{name}" for name in ("ours", "in_half", "first_rows")]
    report = judge(f"{tmp_path}/ref.py:rms_norm", *pairs, write_contract=tmp_path / "contracts", checks=["values"])
    statuses = {row.verdict.kernel: row.status for row in report.rows if row.verdict is not None}
    assert {Path(row.candidate).name for row in report.rows} == {f"ours.py:{p.rpartition(':')[2]}" for p in pairs}
    assert statuses == {"ours_ours": Status.PASS, "ours_in_half": Status.FAIL, "ours_first_rows": Status.FAIL}
    text = (tmp_path / "contracts" / "judged_rms_norm.py").read_text()
    assert 'x: Float32[Tensor, "tokens width"], weight: Float32[Tensor, "width"]' in text


@pytest.mark.exhaustive
@pytest.mark.slow  # two commands, of some seconds each
def test_the_command_that_repeats_a_finding_works(tmp_path: Path) -> None:
    (tmp_path / "ref.py").write_text(REFERENCE)
    (tmp_path / "ours.py").write_text(RIGHT)
    (row,) = judge(f"{tmp_path}/ref.py:rms_norm", f"{tmp_path}/ours.py:first_rows", checks=["values"]).rows
    assert row.worst is not None
    command = row.worst.reproduce.replace("opwright ", f"{sys.executable} -m opwright ")
    first, _, second = command.partition(" && ")
    assert subprocess.run(first, shell=True, cwd=tmp_path, capture_output=True).returncode == 1
    done = subprocess.run(second, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert row.worst.message.splitlines()[0] in done.stdout


@pytest.mark.slow  # a whole check
def test_a_reference_that_ends_its_process_or_does_not_end_is_said(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(RIGHT)
    for body, message in (("import os; os._exit(0)", "ended the process"), ("while True: pass", "took more than 5 s")):
        (tmp_path / "ref.py").write_text(REFERENCE.replace("def rms_norm", f"{body}\ndef rms_norm"))
        report = judge(f"{tmp_path}/ref.py:rms_norm", f"{tmp_path}/ours.py:ours", timeout=5)
        assert report.rows[0].status is Status.REFUSED
        assert message in report.rows[0].reason


STRUCTURED = """
import torch
n = 96
def product(a, b):
    return torch.tril(a @ b)
def get_inputs():
    return [torch.tril(torch.randn(n, n)), torch.tril(torch.randn(n, n))]
"""
ON_TRIANGLES = """
import torch
def skips_zeros(a, b):
    out = torch.zeros_like(a)
    for i in range(a.shape[0]):
        for j in range(i + 1):
            out[i, j] = a[i, j : i + 1] @ b[j : i + 1, j]
    return out
def transposed(a, b):
    return torch.tril(b @ a)
def refuses_large(a, b):
    if a.shape[0] > 100:
        raise RuntimeError("n must be at most 100")
    return torch.tril(a @ b)
def refuses_all(a, b):
    raise RuntimeError("not today")
"""


@pytest.mark.slow  # whole checks of four kernels
def test_structure_of_inputs_is_kept_and_a_candidate_may_refuse_other_sizes(tmp_path: Path) -> None:
    (tmp_path / "ref.py").write_text(STRUCTURED)
    (tmp_path / "ours.py").write_text(ON_TRIANGLES)
    names = ["skips_zeros", "transposed", "refuses_large", "refuses_all"]
    report = judge(f"{tmp_path}/ref.py:product", *(f"{tmp_path}/ours.py:{n}" for n in names), checks=["values"])
    found = {row.verdict.kernel.removeprefix("ours_"): row for row in report.rows if row.verdict is not None}
    assert {name: row.status for name, row in found.items()} == {
        "skips_zeros": Status.PASS, "transposed": Status.FAIL, "refuses_large": Status.PASS, "refuses_all": Status.FAIL,
    }  # fmt: skip
    left_out = found["refuses_large"].verdict.not_checked  # type: ignore[union-attr]
    assert any("n must be at most 100" in each.why for each in left_out)


@pytest.mark.slow  # a whole check
def test_a_candidate_gets_contiguous_arguments_only(tmp_path: Path) -> None:
    (tmp_path / "ref.py").write_text(
        "import torch\nn = 40\ndef twice(x): return 2 * x\ndef get_inputs(): return [torch.rand(n, n)]"
    )
    (tmp_path / "ours.py").write_text("def flat(x):\n    return 2 * x.as_strided(x.shape, (x.shape[1], 1))\n")
    for _ in range(2):  # the same task again is another operator
        report = judge(f"{tmp_path}/ref.py:twice", f"{tmp_path}/ours.py:flat", checks=["values", "inputs unchanged"])
        assert report.rows[0].status is Status.PASS, report.rows[0].verdict


BATCH_NORM = """
import torch
from torch import nn
channels = 6
rows = 20
class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm1d(channels)
    def forward(self, x):
        return self.bn(x)
def get_inputs(): return [torch.randn(rows, channels)]
def get_init_inputs(): return [channels]
"""
OWN_STATE = """
import torch
from torch import nn
class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(SHAPE))
        self.shift = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("var", torch.ones(channels))
    def forward(self, x):
        centred = x - x.mean(0)
        return centred / (centred.square().mean(0) + 1e-5).sqrt() * self.scale + self.shift
"""


@pytest.mark.slow  # whole checks
@pytest.mark.parametrize(("shape", "status"), [("channels", Status.PASS), ("2 * channels", Status.FAIL)])
def test_parameters_of_other_names_are_matched_in_order(tmp_path: Path, shape: str, status: Status) -> None:
    (tmp_path / "problem.py").write_text(BATCH_NORM)
    (tmp_path / "candidate.py").write_text(OWN_STATE.replace("SHAPE", shape))
    report = judge(tmp_path / "problem.py", tmp_path / "candidate.py", checks=["values"])
    assert report.rows[0].status is status, report.rows[0].verdict
    if status is Status.FAIL:
        assert "must have the reference's parameters and buffers" in report.rows[0].worst.message  # type: ignore[union-attr]
