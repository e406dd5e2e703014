"""BackendBench: implementations of torch's operators in folders, and the calls of a file of traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from opwright.judged.formats import read_tasks
from opwright.judged.inferring.inference import infer
from opwright.judged.run import judge
from opwright.results import Status

_TRACES = """Operator: aten.add.Tensor
cnt: 4, ((T([8, 16], f32), T([16], f32)), {'alpha': 2})
cnt: 9, ((T([4, 6], f32), T([6], f32)), {'alpha': 2})
cnt: 1, ((T([3], f16), 1.5), {})
cnt: 1, ((T([3], f16, [2]), T([3], f16)), {})
Operator: aten.add_.Tensor
cnt: 1, ((T([3], f16), 1.5), {})
Operator: aten.cat.default
cnt: 2, (([T([2, 5], f32), T([3, 5], f32)],), {})
Operator: aten.zeros_like.default
cnt: 2, ((T([2, 5], f32),), {'dtype': torch.float32, 'device': 'cuda'})
malformed
cnt: 2, ((T([2, 5], f32)
"""
_ADD = "import torch\n\n\ndef add__Tensor_kernel_impl(x, y, *, alpha=1):\n    return x + RIGHT\n"


def write(root: Path) -> Path:
    files = {
        "add__Tensor/add__Tensor_implementation_v1.py": _ADD.replace("RIGHT", "alpha * y"),
        "add__Tensor/add__Tensor_implementation_v2.py": _ADD.replace("RIGHT", "y"),
        "cat__default/cat__default_implementation.py": (
            "import torch\ndef cat__default_kernel_impl(tensors, dim=0):\n    return torch.cat(list(tensors), dim)\n"
        ),
        "zeros_like/zeros_like_implementation_v1.py": (
            "def zeros_like_kernel_impl(x, *, dtype, device):\n    return x.new_zeros(x.shape, dtype=dtype)\n"
        ),
        "relu__default/relu__default_implementation_v1.py": "def relu__default_kernel_impl(x):\n    return x.relu()\n",
        "add__Tensor/README.md": "not code",
    }
    for name, text in files.items():
        (root / "generated" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "generated" / name).write_text(text)
    (root / "traces.txt").write_text(_TRACES)
    return root / "generated"


def test_each_form_of_a_call_is_a_task(tmp_path: Path) -> None:
    tasks, unread = read_tasks([str(write(tmp_path))], tmp_path / "scratch", references=tmp_path / "traces.txt")
    assert [(t.name, t.format, len(t.candidates)) for t in tasks] == [
        ("add_Tensor", "backendbench", 2), ("add_Tensor_", "backendbench", 2), ("cat_default", "backendbench", 1),
        ("zeros_like_default", "backendbench", 1),
    ]  # fmt: skip
    assert unread[0][0].endswith("relu__default_implementation_v1.py")
    assert unread[0][1] == "traces.txt must have calls of it that return new tensors, got none"
    add, scalar, cat, _ = map(infer, tasks)
    assert [a.dims for a in add.arguments] == [("n0", "n1"), ("n1",)]
    assert [(a.dtype, a.dims) for a in scalar.arguments] == [("float16", ("n0",))]
    assert [a.dims for a in cat.arguments] == [("n0", "n1"), ("n2", "n1")]


def test_without_traces_it_is_said(tmp_path: Path) -> None:
    tasks, unread = read_tasks([str(write(tmp_path))], tmp_path / "scratch")
    assert not tasks
    assert len(unread) == 5
    assert "name the file with --references" in unread[0][1]


@pytest.mark.slow  # whole checks
def test_a_wrong_implementation_fails_and_right_ones_pass(tmp_path: Path) -> None:
    report = judge(write(tmp_path), references=tmp_path / "traces.txt", checks=["values"])
    found = [(Path(row.candidate).stem, row.status) for row in report.rows]
    assert sorted(name for name, status in found if status is Status.FAIL) == ["add__Tensor_implementation_v2"]
    assert len([status for _, status in found if status is Status.PASS]) == 5, report.rows
