"""tritonbench: an operator's baseline is the reference, and its other benchmarks are candidates."""

from __future__ import annotations

from pathlib import Path

import pytest

from opwright.judged.formats import read_tasks
from opwright.judged.inferring.inference import infer
from opwright.judged.run import judge
from opwright.results import Status

_OPERATOR = '''
import argparse
import torch
from tritonbench.utils.data_utils import get_production_shapes
from tritonbench.utils.env_utils import is_fbcode
from tritonbench.utils.triton_op import (
    BenchmarkOperator, BenchmarkOperatorMetrics, Mode, register_benchmark, register_metric, register_x_val,
)

try:
    from no_such_package import fast
    HAS_FAST = True
except ImportError:
    HAS_FAST = False


class Operator(BenchmarkOperator):
    DEFAULT_PRECISION = "fp32"

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.rows = argparse.ArgumentParser().parse_args(self.extra_args).__dict__.get("rows", 6)

    @register_benchmark(baseline=True)
    def naive(self, x, scale):
        """The rows' softmax."""
        def inner():
            return torch.softmax(x * scale, dim=1)
        return inner

    @register_benchmark()
    def right(self, x, scale):
        def inner():
            powers = torch.exp(x * scale - (x * scale).amax(1, keepdim=True))
            return powers / powers.sum(1, keepdim=True)
        return inner

    @register_benchmark()
    def wrong(self, x, scale):
        return lambda: torch.softmax(x * scale, dim=0)

    @register_benchmark()
    def deceives(self, x, scale):
        return self.naive(x, scale)

    @register_benchmark(enabled=HAS_FAST)
    def absent(self, x, scale):
        return lambda: fast(x)

    def get_input_iter(self):
        shapes = get_production_shapes(self.name) if is_fbcode() and self.tb_args.production_shapes else []
        for columns in [8, *shapes]:
            yield (torch.randn([self.rows, columns], dtype=self.dtype, device=self.device,
                               requires_grad=self.mode != Mode.FWD_NO_GRAD), 0.5)

    @register_x_val(label="(M, N)")
    def get_x_val(self, example_inputs):
        return example_inputs[0].shape

    @register_metric()
    def gbps(self, fn, example_inputs, metrics: BenchmarkOperatorMetrics) -> float:
        return 1.0
'''


def write(root: Path, text: str = _OPERATOR) -> Path:
    folder = root / "operators" / "softmax"
    folder.mkdir(parents=True)
    (folder / "operator.py").write_text(text)
    (folder / "__init__.py").touch()
    return root / "operators"


def test_the_baseline_is_the_reference(tmp_path: Path) -> None:
    (task,), unread = read_tasks([str(write(tmp_path))], tmp_path / "scratch")
    assert (task.name, task.format) == ("softmax", "tritonbench")
    assert [c.name for c in task.candidates] == ["right", "wrong", "deceives"]
    assert [(path.rpartition(":")[2], why) for path, why in unread] == [("absent", "it exists only if HAS_FAST")]
    found = infer(task)
    assert [(a.dtype, a.dims) for a in found.arguments] == [("float32", ("n0", "n1"))]
    assert found.scalars == {1: 0.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class BenchmarkOperator(:", "operator.py:1: it must be Python"),
        ("BenchmarkOperator = 1", "operator.py must define class Operator(BenchmarkOperator), got none"),
        (_OPERATOR.replace("baseline=True", ""), "it must have a benchmark with baseline=True and another one, got 4"),
    ],
)
def test_a_malformed_operator_is_said_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    found, unread = read_tasks([str(write(tmp_path, text))], tmp_path / "scratch")
    assert not found
    assert any(message in reason for _, reason in unread)


@pytest.mark.slow  # whole checks
def test_a_wrong_benchmark_fails_and_a_right_one_passes(tmp_path: Path) -> None:
    report = judge(write(tmp_path), checks=["values", "cheats"])
    found = {row.candidate.rpartition(":")[2]: row for row in report.rows}
    assert {name: row.status for name, row in found.items()} == {
        "right": Status.PASS, "wrong": Status.FAIL, "deceives": Status.FAIL,
    }  # fmt: skip
    assert found["deceives"].worst.message == "it calls the reference"  # type: ignore[union-attr]
