"""robust-kbench: a module that calls a function, and a kernel in the place of this function."""

from __future__ import annotations

from pathlib import Path

import pytest

from opwright.judged.formats import read_tasks
from opwright.judged.inferring.inference import infer
from opwright.judged.run import judge
from opwright.results import Status

_TASK = """
import torch
from torch import nn

def forward_fn(x, weights):
    return (x * weights).sum()

class Model(nn.Module):
    def __init__(self, features: int = 64, method: str = "normal"):
        super().__init__()
        assert method == "ones"
        self.weights = nn.Parameter(torch.ones(features))

    def forward(self, x, fn=forward_fn):
        return fn(x, self.weights)

def get_inputs(batch: int = 16, features: int = 64):
    return [torch.randn(batch, features)]
"""
_CONFIG = """{
  "single_input_configs": [{"batch": 3}],
  "single_init_configs": [{"method": "ones"}],
  "single_shared_configs": [{"features": 5}],
  "multi_input_configs": [{"batch": 4}, {"batch": 2}],
  "multi_init_configs": [{"method": "ones"}],
  "multi_shared_configs": [{"features": 7}]
}"""
_KERNEL = """
#include <torch/extension.h>
#define THREADS 1  // one after the other
__global__ void total(const float* x, const float* w, float* out, int rows, int columns) {
  float sum = 0;
  for (int i = 0; i < rows * columns; i++) sum += x[i] * w[INDEX];
  out[0] = sum;
}
torch::Tensor forward(torch::Tensor x, torch::Tensor w) {
  auto out = torch::empty({1}, x.options());
  total<<<1, THREADS>>>(x.data_ptr<float>(), w.data_ptr<float>(), out.data_ptr<float>(), x.size(0), x.size(1));
  return out;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward); }
"""


def write_task(root: Path, *, task: str = _TASK, config: str = _CONFIG) -> tuple[Path, Path]:
    """The folder of tasks, and that of kernels, which are below folders with the name of the task."""
    kernels = root / "kernels"
    files = {
        root / "tasks/total/func_forward.py": task,
        root / "tasks/total/config_forward.json": config,
        kernels / "right/total/forward/kernel.cu": _KERNEL.replace("INDEX", "i % columns"),
        kernels / "wrong/total/forward/kernel.cu": _KERNEL.replace("INDEX", "i / columns"),
        kernels / "right/total/backward/kernel.cu": _KERNEL,
        kernels / "right/total/forward/other.cu": "int x;",
    }
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root / "tasks", kernels


def test_configurations_are_constants(tmp_path: Path) -> None:
    tasks, kernels = write_task(tmp_path)
    (task,), unread = read_tasks([str(kernels)], tmp_path / "scratch", references=tasks)
    assert (task.name, task.format) == ("tasks_total", "robust-kbench")
    assert task.cases == ({"batch": 4, "features": 7}, {"batch": 2, "features": 7})
    assert [c.language for c in task.candidates] == ["cuda", "cuda"]
    assert {Path(path).parent.name + "/" + Path(path).stem: reason for path, reason in unread} == {
        "backward/kernel": "it must export backward with PYBIND11_MODULE",
        "forward/other": "it must export forward with PYBIND11_MODULE",
    }
    found = infer(task)
    assert {a.name: " ".join(a.dims or ()) for a in found.arguments} == {"x": "batch features", "weights": "features"}
    assert [o.dims for o in found.outputs] == [("1",)]
    assert found.own == {"batch": 3, "features": 5}


@pytest.mark.parametrize(
    ("task", "config", "message"),
    [
        ("def get_inputs(): pass", _CONFIG, "func_forward.py must define 'forward_fn', got ['get_inputs']"),
        ("def get_inputs(:", _CONFIG, "func_forward.py:1: it must be Python"),
        (_TASK, "{", "config_forward.json must have lists of objects, got"),
        (_TASK, '{"single_input_configs": [1]}', "config_forward.json must have lists of objects, got"),
    ],
)
def test_a_malformed_task_is_said_in_one_line(tmp_path: Path, task: str, config: str, message: str) -> None:
    tasks, kernels = write_task(tmp_path, task=task, config=config)
    found, unread = read_tasks([str(kernels)], tmp_path / "scratch", references=tasks)
    assert not found
    assert any(message in reason for _, reason in unread)


@pytest.mark.slow  # whole checks of two CUDA kernels in the simulator
@pytest.mark.compiler
def test_a_wrong_kernel_fails_and_a_right_one_passes(tmp_path: Path) -> None:
    tasks, kernels = write_task(tmp_path)
    report = judge(kernels, references=tasks, device="cpu-sim", checks=["contract", "values"])
    found = {Path(row.candidate).parents[2].name: row.status for row in report.rows}
    assert found == {"right": Status.PASS, "wrong": Status.FAIL}


_BACKWARD = """
import torch
from torch import nn

class AutogradFunction(torch.autograd.Function):
    backward_fn = None

    @staticmethod
    def forward(ctx, x, weights):
        ctx.save_for_backward(x, weights)
        return x * weights

    @staticmethod
    def backward(ctx, grad):
        x, weights = ctx.saved_tensors
        grad_x, grad_weights = AutogradFunction.backward_fn(grad, x, weights)
        return grad_x, grad_weights

def forward_fn(x, weights):
    return x * weights

class Model(nn.Module):
    def __init__(self, features: int = 64):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(features))

    def forward(self, x, fn=forward_fn):
        return fn(x, self.weights)

def get_inputs(batch: int = 16, features: int = 64):
    return [torch.randn(batch, features, requires_grad=True)]
"""
_BACKWARD_KERNEL = """
#include <torch/extension.h>
__global__ void gradients(const float* g, const float* x, const float* w, float* gx, float* gw, int rows, int columns) {
  int column = threadIdx.x + blockIdx.x * blockDim.x;
  if (column >= columns) return;
  float sum = 0;
  for (int row = 0; row < ROWS; row++) {
    int i = row * columns + column;
    gx[i] = g[i] * w[column];
    sum += g[i] * x[i];
  }
  gw[column] = sum;
}
std::vector<torch::Tensor> backward(torch::Tensor g, torch::Tensor x, torch::Tensor w) {
  auto gx = torch::empty_like(x);
  auto gw = torch::empty_like(w);
  gradients<<<(x.size(1) + 31) / 32, 32>>>(g.data_ptr<float>(), x.data_ptr<float>(), w.data_ptr<float>(),
                                           gx.data_ptr<float>(), gw.data_ptr<float>(), x.size(0), x.size(1));
  return {gx, gw};
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("backward", &backward); }
"""


def write_backward(root: Path) -> tuple[Path, Path]:
    """The folder of tasks, and that of a right and a wrong kernel for a backward."""
    files = {
        "tasks/scale/func_backward.py": _BACKWARD,
        "tasks/scale/config_forward.json": '{"single_shared_configs": [{"features": 5}]}',
        "kernels/right/scale/backward/kernel.cu": _BACKWARD_KERNEL.replace("ROWS", "rows"),
        "kernels/wrong/scale/backward/kernel.cu": _BACKWARD_KERNEL.replace("ROWS", "rows - 1"),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root / "tasks", root / "kernels"


def test_a_backward_is_a_task_with_an_incoming_gradient(tmp_path: Path) -> None:
    tasks, kernels = write_backward(tmp_path)
    (task,), unread = read_tasks([str(kernels)], tmp_path / "scratch", references=tasks)
    assert not unread
    assert task.name == "tasks_scale_backward"
    found = infer(task)
    assert {a.name: " ".join(a.dims or ()) for a in found.arguments} == {
        "x": "batch features", "incoming_gradient": "batch features", "model_weights": "features",
    }  # fmt: skip
    assert [o.dims for o in found.outputs] == [("batch", "features"), ("features",)]


@pytest.mark.slow  # whole checks of two CUDA kernels in the simulator
@pytest.mark.compiler
def test_a_wrong_backward_fails_and_a_right_one_passes(tmp_path: Path) -> None:
    tasks, kernels = write_backward(tmp_path)
    report = judge(kernels, references=tasks, device="cpu-sim")
    found = {Path(row.candidate).parents[2].name: row for row in report.rows}
    assert found["right"].status is Status.PASS, found["right"].verdict
    assert found["wrong"].status is Status.FAIL
