"""kernelbench.com: modules with buffers, lists of shapes, published runs and what people decided of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from opwright.judged.contract_text import contract_text
from opwright.judged.formats import read_tasks
from opwright.judged.inferring.inference import infer
from opwright.judged.run import judge
from opwright.results import Status

_REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, M, N, K):
        super().__init__()
        weight = torch.randn(N, K)
        self.register_buffer("scale", weight.abs().amax(1) / 448)
        self.register_buffer("weight", (weight / self.scale[:, None]).to(torch.float8_e4m3fn))

    def forward(self, x):
        return (x @ self.weight.float().T) * self.scale

M = 4
N = 8
K = 16

def get_inputs():
    return [torch.randn(M, K)]

def get_init_inputs():
    return [M, N, K]
"""
_SOLUTION = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, M, N, K):
        super().__init__()
        self.register_buffer("scale", torch.empty(N))
        self.register_buffer("weight", torch.empty(N, K, dtype=torch.float8_e4m3fn))

    def forward(self, x):
        product = x @ self.weight.float().T
        product[:, : MOST] *= self.scale[: MOST]
        return product
"""
_PROBLEM = """
name: 01_scaled
tolerance:
  float32: {"atol": 1.0e-3, "rtol": "5e-2"}
forbidden:
  - "torch.matmul"
"""
_RUN = "20260101_agent_01_scaled"


def write_runs(root: Path, *, problem: str = _PROBLEM, reference: str = _REFERENCE) -> tuple[Path, Path]:
    """The problems; the folder of published runs, of which people audited the first."""
    folder, runs = root / "benchmarks/hard/problems/01_scaled", root / "public/runs"
    files = {
        folder / "problem.yaml": problem,
        folder / "reference.py": reference,
        folder / "shapes.py": 'SHAPES = [{"M": 1, "N": 64, "K": 32}, {"M": 3, "N": 5, "K": 7, "P": 2}]',
        runs / f"{_RUN}_solution.py.txt": _SOLUTION.replace("MOST", "1 << 40"),
        runs / f"2_{_RUN}_solution.py.txt": _SOLUTION.replace("MOST", "4"),
        runs / f"3_{_RUN}_solution.py.txt": "# torch.matmul\n" + _SOLUTION.replace("MOST", "1 << 40"),
        root / f"benchmarks/hard/results/annotations/{_RUN}.yaml": "verdict: clean",
    }
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder.parent, runs


def test_runs_are_read_with_their_problem_and_their_audit(tmp_path: Path) -> None:
    problems, runs = write_runs(tmp_path)
    (task,), unread = read_tasks([str(runs)], tmp_path / "scratch", references=problems)
    assert not unread
    assert (task.name, task.format) == ("problem_01_scaled", "kernelbench.com")
    assert {c.origin.name.partition("_")[0]: c.claimed for c in task.candidates if c.origin} == {
        "20260101": "correct", "2": "", "3": "wrong",
    }  # fmt: skip
    assert all(c.file.suffix == ".py" and tmp_path / "scratch" in c.file.parents for c in task.candidates)
    assert task.rule is not None
    assert (task.rule.atol, task.rule.rtol) == (1e-3, 5e-2)
    found = infer(task)
    assert {a.name: " ".join(a.dims or ()) for a in found.arguments} == {"x": "M K", "scale": "N", "weight": "N K"}
    text = contract_text(task, found)
    assert ".sizes(M=(4, 1), N=(8, 64), K=(16, 32))" in text
    assert 'weight: Annotated[Float8e4m3fn[Tensor, "N K"], ow.inputs.drawn_by(task.drawn_state' in text


def test_shapes_may_name_constants_in_other_letters_and_solutions_have_files_after_them(tmp_path: Path) -> None:
    reference = _REFERENCE.replace("M = 4", "M = 96").replace("N = 8", "N = 512")
    problems, runs = write_runs(tmp_path, reference=reference)
    folder = problems / "01_scaled"
    (folder / "shapes.py").write_text('SHAPES = [{"m": 64, "n": 256, "K": 7}, {"m": 32, "n": 384, "K": 9}]')
    reference = folder / "reference.py"  # its own inputs are a case, too
    reference.write_text(reference.read_text().replace("M = 4\nN = 8\n", "M = 64\nN = 256\n"))
    run, line = runs / f"{_RUN}_solution.py.txt", f"# {'=' * 9}"
    heading = f"{line}\n{line[:5]} sidecar: own.cu (12 bytes, read by it) {'=' * 5}\n{line}\n"
    run.write_text(f"{_SOLUTION}\n{heading}\nint own() {{}}\n")
    (task,), unread = read_tasks([str(run)], tmp_path / "scratch", references=problems)
    assert not unread
    assert [dict(case) for case in task.cases] == [{"M": 64, "N": 256, "K": 7}, {"M": 32, "N": 384, "K": 9}]
    assert {"M % 32 == 0", "N % 128 == 0"} <= set(infer(task).where)
    (candidate,) = task.candidates
    assert candidate.file.with_name("own.cu").read_text() == "int own() {}\n"
    compile(candidate.file.read_text(), "solution", "exec")


def test_a_solution_that_imports_what_is_not_installed_is_said(tmp_path: Path) -> None:
    problems, runs = write_runs(tmp_path)
    run = runs / f"{_RUN}_solution.py.txt"
    run.write_text(f"import no_such_package{_SOLUTION}")
    (task,), ((path, reason),) = read_tasks([str(runs)], tmp_path / "scratch", references=problems)
    assert Path(path).name == run.name
    assert "'no_such_package' must be installed" in reason
    assert len(task.candidates) == 2


def test_a_solution_beside_its_problem_needs_no_references(tmp_path: Path) -> None:
    problems, _ = write_runs(tmp_path)
    (problems / "01_scaled" / "solution.py").write_text(_SOLUTION)
    (task,), _ = read_tasks([str(problems)], tmp_path / "scratch")
    assert [c.name for c in task.candidates] == ["task_01_scaled"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"problem": "tolerance: ["}, "problem.yaml must be YAML, got"),
        ({"problem": "- 1"}, "problem.yaml must be a mapping, got list"),
        ({"reference": "class Model: pass"}, "reference.py must define 'get_inputs', got ['Model']"),
        ({"reference": "class Model("}, "reference.py:1: it must be Python"),
    ],
)
def test_a_malformed_problem_is_said_in_one_line(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    problems, runs = write_runs(tmp_path, **changed)
    tasks, ((path, reason),) = read_tasks([str(runs)], tmp_path / "scratch", references=problems)
    assert not tasks
    assert path.endswith("01_scaled")
    assert message in reason


def test_a_run_without_its_problem_is_said(tmp_path: Path) -> None:
    _, runs = write_runs(tmp_path)
    tasks, unread = read_tasks([str(runs)], tmp_path / "scratch")
    assert not tasks
    assert len(unread) == 3
    assert "--references" in unread[0][1]


@pytest.mark.slow  # whole checks
def test_a_state_that_is_not_taken_is_wrong_by_the_format_alone(tmp_path: Path) -> None:
    problems, runs = write_runs(tmp_path)
    for file in [*runs.glob("2_*"), *runs.glob("3_*")]:
        file.unlink()
    own = 'self.register_buffer("own", torch.ones(2)); self.register_buffer("scale"'
    text = _SOLUTION.replace("MOST", "1 << 40").replace('self.register_buffer("scale"', own)
    (runs / f"2_{_RUN}_solution.py.txt").write_text(text)
    checks = ["contract", "values", "published rule", "cheats"]
    report = judge(runs, references=problems, checks=checks)
    found = {Path(row.candidate).name.partition("_")[0]: (row.status, row.by_rule) for row in report.rows}
    assert found == {"20260101": (Status.PASS, "correct"), "2": (Status.WARNING, "wrong")}


@pytest.mark.slow  # whole checks
def test_a_wrong_solution_fails_and_a_right_one_passes(tmp_path: Path) -> None:
    problems, runs = write_runs(tmp_path)
    report = judge(runs, references=problems, checks=["contract", "values"])
    found = {Path(row.candidate).name.partition("_")[0]: row.status for row in report.rows}
    assert found == {"20260101": Status.PASS, "2": Status.FAIL, "3": Status.PASS}
