"""SOL-ExecBench: sizes that are computed, inputs from a function of the task, several languages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opwright.judged.formats import read_tasks
from opwright.judged.run import judge
from opwright.results import Status

_REFERENCE = """
import torch

def generate_inputs(axes_and_scalars, device):
    n, half = axes_and_scalars["n"], axes_and_scalars["n"] // 2
    return {"order": torch.randperm(n, device=device).int(), "x": torch.randn(n, 6, device=device)}

def run(order, x):
    return x[order.long()].reshape(-1, 12), x.sum(1)
"""
_DEFINITION: dict[str, Any] = {
    "name": "permuted",
    "axes": {
        "n": {"type": "var"},
        "width": {"type": "const", "value": 12},
        "half": {"type": "expr", "expression": "width / 2"},
        "pairs": {"type": "expr", "expression": "n / 2"},
    },
    "custom_inputs_entrypoint": "generate_inputs",
    "inputs": {"order": {"shape": ["n"], "dtype": "int32"}, "x": {"shape": ["n", "half"], "dtype": "float32"}},
    "outputs": {
        "pairs_of_rows": {"shape": ["pairs", "12"], "dtype": "float32"},
        "sums": {"shape": ["n"], "dtype": "float32"},
    },
    "reference": _REFERENCE,
}
_WORKLOAD = {"axes": {"n": 8}, "inputs": {"order": {"type": "custom"}, "x": {"type": "custom"}}, "uuid": "1"}
_KERNEL = """
#include <torch/extension.h>
#include "rows.h"
void run(torch::Tensor order, torch::Tensor x, torch::Tensor pairs, torch::Tensor sums) {
  rows<<<x.size(0), 6>>>(order.data_ptr<int>(), x.data_ptr<float>(), pairs.data_ptr<float>(), sums.data_ptr<float>());
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
_HEADER = """
__global__ void rows(const int* order, const float* x, float* pairs, float* sums) {
  int row = blockIdx.x;
  pairs[row * 6 + threadIdx.x] = x[SOURCE * 6 + threadIdx.x];
  if (threadIdx.x > 0) return;
  float sum = 0;
  for (int i = 0; i < 6; i++) sum += x[row * 6 + i];
  sums[row] = sum;
}
"""


def write_task(folder: Path, **sources: str) -> Path:
    """A task with solutions in CUDA, by name: the row that each reads."""
    folder.mkdir(exist_ok=True)
    (folder / "definition.json").write_text(json.dumps(_DEFINITION))
    (folder / "workload.jsonl").write_text(json.dumps(_WORKLOAD) + "\n")
    for name, row in sources.items():
        files = {"main.cu": _KERNEL, "rows.h": _HEADER.replace("SOURCE", row)}
        record = {
            "name": name, "definition": "permuted", "author": "test",
            "spec": {"languages": ["cuda_cpp"], "entry_point": "main.cu::run", "target_hardware": ["LOCAL"]},
            "sources": [{"path": path, "content": text} for path, text in files.items()],
        }  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps(record))
    return folder


def test_sizes_are_computed_and_inputs_come_from_the_task(tmp_path: Path) -> None:
    (task,), unread = read_tasks([str(write_task(tmp_path / "task", right="order[row]"))], tmp_path / "scratch")
    assert not unread
    assert task.format == "sol-execbench"
    contract = task.stated
    assert contract is not None
    assert [a.dims for a in contract.arguments] == [("n",), ("n", "6")]
    assert [a.dims for a in contract.outputs] == [("n//2", "12"), ("n",)]
    assert contract.arguments[0].values.startswith("ow.inputs.drawn_by(custom_values(")
    assert task.candidates[0].language == "cuda"
    assert "inputs = generate_inputs({'n': 8, 'width': 12}" in task.file.read_text()


@pytest.mark.slow  # whole checks of two CUDA kernels in the simulator
@pytest.mark.compiler
def test_a_wrong_solution_fails_and_a_right_one_passes(tmp_path: Path) -> None:
    folder = write_task(tmp_path, right="order[row]", wrong="row")
    report = judge(folder, device="cpu-sim", checks=["contract", "memory", "values"])
    found = {Path(row.candidate).stem: row.status for row in report.rows}
    assert found == {"right": Status.PASS, "wrong": Status.FAIL}
