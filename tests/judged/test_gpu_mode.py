"""gpu-mode's reference-kernels: nests of tensors, tensors for results, and files that import each other by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from opwright.judged.formats import read_tasks
from opwright.judged.inferring.inference import infer
from opwright.judged.run import judge
from opwright.judged.task import Task
from opwright.results import Status

_TASK = """
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "task.py", "source": "task.py"}
  - {"name": "utils.py", "source": "../utils.py"}
  - {"name": "reference.py", "source": "reference.py"}
lang: "py"
tests:
  - {"rows": 5, "columns": 7, "scale": 0.5, "seed": 1}
  - {"rows": 50, "columns": 8, "scale": 0.5, "seed": 2}
"""
_UTILS = """
def make_match_reference(reference, **tolerance):
    return lambda data, output: ""
"""
# The device, a number that is read, a tensor for the result, settings that are set back to others.
_REFERENCE = """
import torch
from utils import make_match_reference
from task import input_t

def ref_kernel(data):
    (x, weights), options, output = data["x"], data["options"], data["output"]
    torch.use_deterministic_algorithms(True)
    output[...] = (x.double() * weights.double()).sum(1).mul(options["scale"]).flatten()
    torch.use_deterministic_algorithms(False)
    torch.nn.Linear(2, 2)  # draws parameters that change nothing
    return output.double()

def generate_input(rows, columns, scale, seed):
    generator = torch.Generator(device="cuda")
    generator.manual_seed(seed)
    x = torch.randn(rows, columns, device="cuda", generator=generator)
    offset = x.mean().item()
    return {
        "x": (x - offset, torch.rand(columns, device="cuda").contiguous()),
        "options": {"scale": scale, "columns": columns},
        "output": torch.empty(rows, device="cuda"),
    }

check_implementation = make_match_reference(ref_kernel, rtol=1e-3, atol=1e-4)
"""
_SUBMISSION = """
import torch
from task import input_t

def _kernel(data):
    (x, weights), options = data["x"], data["options"]
    assert options["columns"] == x.shape[1]
    data["output"][:MOST] = (x * weights).sum(1)[:MOST] * options["scale"]
    return data["output"]

custom_kernel = torch.compile(_kernel, mode="reduce-overhead")
"""


def write_task(root: Path, *, reference: str = _REFERENCE, task: str = _TASK) -> Path:
    """A task with a right and a wrong submission, and its utilities beside it."""
    folder = root / "problems" / "row_sums"
    files = {
        "task.yml": task, "task.py": "input_t = dict", "reference.py": reference, "../utils.py": _UTILS,
        "submission.py": _SUBMISSION.replace("MOST", "None"),
        "solutions/wrong/few.py": _SUBMISSION.replace("MOST", "32"),
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return root


def test_a_task_is_read_and_its_integers_are_constants(tmp_path: Path) -> None:
    (task,), unread = read_tasks([str(write_task(tmp_path))], tmp_path / "scratch")
    assert not unread
    assert (task.name, task.format) == ("problems_row_sums", "gpu-mode")
    assert [(c.name, c.claimed) for c in task.candidates] == [("few", "wrong"), ("submission", "")]
    assert task.rule is not None
    assert (task.rule.rtol, task.rule.atol) == (1e-3, 1e-4)
    assert task.cases == ({"rows": 50, "columns": 8},)
    found = infer(task)
    assert [" ".join(a.dims or ()) for a in found.arguments] == ["rows columns", "columns"]
    assert [(o.dtype, o.dims) for o in found.outputs] == [("float32", ("rows",))]
    assert found.own == {"rows": 5, "columns": 7}


def test_one_submission_is_judged_by_the_task_above_it(tmp_path: Path) -> None:
    write_task(tmp_path)
    file = tmp_path / "problems/row_sums/submission.py"
    (task,), _ = read_tasks([str(file)], tmp_path / "scratch")
    assert isinstance(task, Task)
    assert [c.origin for c in task.candidates] == [file]


@pytest.mark.parametrize(
    ("reference", "task", "message"),
    [
        (_REFERENCE.replace("def ref_kernel", "def check"), _TASK, "must define 'ref_kernel', a plain reference"),
        (_REFERENCE + "def check_implementation(data, output):\n    return ''", _TASK, "must compare with ref_kernel"),
        ("def generate_input(:", _TASK, "reference.py:1: it must be Python"),
        (_REFERENCE, "files: [", "task.yml must be YAML, got while parsing"),
        (_REFERENCE, "lang: py", "files of task.yml must be a list"),
        (_REFERENCE, _TASK.partition("tests:")[0], "tests of task.yml must be arguments of generate_input"),
    ],
)
def test_what_is_no_task_is_said_in_one_line(tmp_path: Path, reference: str, task: str, message: str) -> None:
    tasks, unread = read_tasks([str(write_task(tmp_path, reference=reference, task=task))], tmp_path / "scratch")
    assert not tasks
    assert message in unread[0][1]


@pytest.mark.slow  # whole checks
def test_a_wrong_submission_fails_and_a_right_one_passes(tmp_path: Path) -> None:
    report = judge(write_task(tmp_path), checks=["contract", "memory", "values", "global state"])
    found = {Path(row.candidate).stem: row.status for row in report.rows}
    assert found == {"submission": Status.PASS, "few": Status.FAIL}
