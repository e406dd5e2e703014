"""flashinfer-bench: definitions state their contracts, and solutions that write their outputs are called so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from opwright.judged.contract_text import contract_text
from opwright.judged.formats import read_tasks
from opwright.judged.run import judge
from opwright.judged.task import Task
from opwright.results import Status
from opwright.results.json_form import from_json, to_json
from opwright.runtime.targets import load_target
from tests.judged.definitions import DEFINITION, solution, write_dataset


def read(folder: Path, *solutions: dict[str, Any], definition: dict[str, Any] = DEFINITION) -> tuple[Any, Any]:
    root = write_dataset(folder / "dataset", *solutions, definition=definition)
    return read_tasks([str(root)], folder / "scratch")


def test_a_definition_states_its_contract(tmp_path: Path) -> None:
    (task,), unread = read(tmp_path, solution("right"))
    assert not unread
    assert (task.name, task.format, task.origin.name) == ("rms_norm_h64", "flashinfer-bench", "norm.json")
    contract = task.stated
    assert [(a.name, a.dtype, a.dims) for a in contract.arguments] == [
        ("x", "float16", ("batch", "64")), ("weight", "float16", ("64",)), ("eps", "float", None),
    ]  # fmt: skip
    assert contract.arguments[2].values == "ow.values(one_of=(1e-05,))"
    assert contract.where == ("batch >= 1", "batch <= 64 * 64")
    assert contract.own == {"batch": 3}
    assert not contract.has_one_shape
    assert from_json(Task, to_json(task)) == task


def test_what_is_written_is_an_operator_with_its_solutions(tmp_path: Path) -> None:
    name = "rms_norm_here"  # the operator is defined in this process
    solutions = [solution("right"), solution("triton", language="triton")]
    renamed = [{**each, "definition": name} for each in solutions]
    (task,), _ = read(tmp_path, *renamed, definition=changed(name=name))
    file = tmp_path / "scratch" / "contract.py"
    file.write_text(contract_text(task, task.stated))
    (op,) = load_target(str(file))
    assert {name: kernel.backend for name, kernel in op.kernels.items()} == {"right": "python", "triton": "triton"}
    x, weight = torch.randn(5, 64).half(), torch.randn(64).half()
    expected = torch.nn.functional.rms_norm(x.float(), (64,), weight.float(), 1e-5).half()
    torch.testing.assert_close(op.kernels["right"](x, weight, 1e-5), expected)
    assert [path.name for path in sorted((tmp_path / "dataset").iterdir())] == ["definitions", "solutions", "workloads"]


def changed(**parts: Any) -> dict[str, Any]:
    return {**DEFINITION, **parts}


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (changed(axes={"batch": {"type": "var"}}), r"axes must state each size, got none for \['hidden'\]"),
        (changed(reference="def run(:"), "reference must be Python, got invalid syntax in line 1"),
        (changed(reference="def f(): pass"), r"reference must define 'run', got \['f'\]"),
        (changed(outputs={"y": {"shape": ["batch"], "dtype": "float4_e2m1"}}), "the dtype of 'y' must be one of"),
        ({k: v for k, v in DEFINITION.items() if k != "inputs"}, r"required field missing @ \$.inputs"),
    ],
)
def test_a_malformed_definition_is_said_in_one_line(tmp_path: Path, definition: Any, message: str) -> None:
    tasks, unread = read(tmp_path, solution("right"), definition=definition)
    assert not tasks
    path, reason = unread[0]
    assert path.endswith("norm.json")
    assert re.search(message, reason), reason


def test_a_malformed_solution_leaves_the_others(tmp_path: Path) -> None:
    bad = [
        {**solution("binding", language="cuda", entry_point="a.cu::run"), "sources": [{"path": "a.cu", "content": ""}]},
        solution("entry", entry_point="kernel.py::run"),
        solution("language", language="cobol"),
        {**solution("outside"), "sources": [{"path": "../main.py", "content": ""}]},
        {**solution("unknown"), "definition": "other"},
    ]
    root = write_dataset(tmp_path / "dataset", solution("right"), *bad)
    (root / "solutions/norm/broken.json").write_text("{")
    (task,), unread = read_tasks([str(root)], tmp_path / "scratch")
    assert [c.name for c in task.candidates] == ["right"]
    reasons = {Path(path).stem: reason for path, reason in unread}
    assert reasons["binding"].startswith("binding must be torch, got tvm-ffi")
    assert reasons["entry"].startswith("entry_point must be a file of sources and a function, got 'kernel.py::run'")
    assert "got 'cobol'" in reasons["language"]
    assert reasons["outside"].startswith("sources must be below the solution's folder")
    assert "got none named 'other'" in reasons["unknown"]
    assert "broken" in reasons


def test_offsets_and_unstated_integers(tmp_path: Path) -> None:
    definition = changed(
        axes={"batch": {"type": "var"}, "hidden": {"type": "const", "value": 64}, "rows": {"type": "var"}},
        inputs={
            **DEFINITION["inputs"],
            "offsets": {"shape": ["rows"], "dtype": "int32"},
            "pages": {"shape": ["rows"], "dtype": "int32"},
        },
        constraints=["batch == offsets[-1].item()"],
    )
    (task,), _ = read(tmp_path, solution("right"), definition=definition)
    assert [a.values for a in task.stated.arguments[3:]] == ["ow.inputs.offsets('batch')", "ow.values(0, 0)"]
    assert "pages: only zeros, because no workload states its values" in task.stated.fixed
    assert not task.inputs


@pytest.mark.slow  # whole checks
def test_a_wrong_solution_fails_and_a_right_one_passes(tmp_path: Path) -> None:
    root = write_dataset(tmp_path, solution("right"), solution("wrong", most=16))
    (root / "solutions/norm/list.json").write_text(json.dumps([]))
    report = judge(root, checks=["contract", "values", "inputs unchanged"])
    found = {Path(row.candidate).stem: row.status for row in report.rows}
    assert found == {"right": Status.PASS, "wrong": Status.FAIL}
