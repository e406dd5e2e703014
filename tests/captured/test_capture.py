"""``ow.capture`` records calls, and checks and benchmarks replay them."""

from __future__ import annotations

import json
import shlex
from typing import Annotated

import pytest
import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from typer.testing import CliRunner

import opwright as ow
from opwright.captured.calls_file import _value, read_calls, record_of, tensor_of
from opwright.cli import app
from opwright.errors import CheckError
from opwright.results import Status
from tests.captured import operators as made

TABLE, ROWS = torch.randn(50, 8), torch.randint(0, 50, (37,))


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "calls.ow"
    with ow.capture(path) as recording:
        for _ in range(3):
            made.Layer()(TABLE, ROWS)
        made.Layer()(TABLE.t().contiguous().t(), ROWS[:5])
    assert recording.calls == 4
    return path


def test_calls_of_operators_are_recorded_with_their_layout_and_count(recorded):
    first, second = read_calls(recorded)
    assert (first.target, first.count, second.count) == ("captured_tests::gather", 3, 1)
    table, rows, scale = first.args
    assert (table.shape, table.strides, table.dtype, rows.shape, scale) == ((50, 8), (8, 1), "float32", (37,), 0.5)
    assert second.args[0].strides == (1, 50)
    assert not table.data


def test_a_check_of_recorded_calls_judges_the_served_shapes(recorded):
    assert ow.check(made.gather, checks=["values"]).passed
    report = ow.check(made.gather, checks=["values"], inputs=recorded)
    (finding,) = [f for f in report.verdicts[0].findings if f.status is Status.FAIL]
    assert "sample=0" in finding.case
    assert "m=37" in finding.case
    assert f"--inputs {recorded}" in finding.reproduce
    assert ow.check(made.gather, checks=["values"]).passed  # nothing is left of it


def test_values_are_recorded_on_request(tmp_path):
    path = tmp_path / "calls.ow"
    with ow.capture(path, made.gather, values=True):
        made.gather(TABLE, ROWS)
    (call,) = read_calls(path)
    assert torch.equal(tensor_of(call.args[0]), TABLE)
    assert torch.equal(tensor_of(call.args[1]), ROWS)


def test_functions_and_modules_are_recorded(tmp_path):
    path, layer = tmp_path / "calls.ow", made.Layer()
    with ow.capture(path, torch.nn.functional.silu, layer):
        layer(TABLE, ROWS)
    assert [call.target for call in read_calls(path)] == ["Layer", "torch.nn.functional.silu"]
    report = ow.check(made.adopted, checks=["values"], inputs=path)
    assert [f.coverage.run for f in report.verdicts[0].findings if f.coverage] == [1]


@pytest.mark.slow
def test_calls_of_a_compiled_graph_are_recorded(tmp_path):
    compiled = torch.compile(made.Layer(), backend="aot_eager")
    compiled(TABLE, ROWS)
    with ow.capture(tmp_path / "calls.ow", made.gather) as recording:
        compiled(TABLE, ROWS)
    assert recording.calls == 1


@pytest.mark.slow
def test_recorded_calls_are_timed(recorded):
    report = ow.bench(made.gather, inputs=recorded, quick=True, directions=["forward"], limits=False)
    assert {m.case["m"] for m in report.measurements} == {37, 5}


def test_a_file_that_was_cut_off_says_where(recorded):
    lines = recorded.read_text().splitlines()
    recorded.write_text("\n".join(lines[:2]) + "\n" + lines[2][:20])
    with pytest.raises(CheckError, match="got a file that was cut off in line 3"):
        ow.check(made.gather, inputs=recorded)
    recorded.write_text("\n".join(lines[:-1]))
    with pytest.raises(CheckError, match="got a file that was cut off in line 3"):
        read_calls(recorded)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no JSON", "got .*, whose line 1 is another"),
        (json.dumps({"opwright": "calls", "version": 9}), "line 1: the version must be 1, got 9"),
        (
            '{"opwright": "calls", "version": 1}\n{"target": "f"}\n{"end": true, "lines": 1, "counts": [1]}',
            "line 2: must be a call with a target",
        ),
    ],
)
def test_another_file_is_refused(text, message, tmp_path):
    (tmp_path / "calls.ow").write_text(text)
    with pytest.raises(CheckError, match=message):
        read_calls(tmp_path / "calls.ow")


def test_a_file_without_calls_of_the_operator_is_refused(recorded):
    with pytest.raises(CheckError, match=r"must have a call of adopted::silu, got calls of captured_tests::gather"):
        ow.check(made.adopted, inputs=recorded)
    with pytest.raises(CheckError, match=r"got '.*missing\.ow': No such file"):
        ow.check(made.adopted, inputs="missing.ow")


def test_a_journal_holds_no_verdict_of_other_calls(recorded, tmp_path):
    assert not ow.check(made.gather, checks=["values"], inputs=recorded, resume=tmp_path / "journal").passed
    with ow.capture(recorded):
        made.Layer()(TABLE, ROWS[:5])
    assert ow.check(made.gather, checks=["values"], inputs=recorded, resume=tmp_path / "journal").passed


def test_recorded_calls_are_not_used_on_other_machines(recorded):
    class Elsewhere:
        machine = None

    with pytest.raises(CheckError, match="inputs must be left out with an executor on other machines"):
        ow.check(made.gather, inputs=recorded, executor=Elsewhere())


@pytest.mark.slow
def test_the_command_replays_and_its_failure_can_be_repeated(recorded, monkeypatch):
    monkeypatch.chdir(recorded.parent)
    target = f"{made.__file__}:gather"
    done = CliRunner().invoke(app, ["check", target, "--check", "values", "--inputs", "calls.ow"])
    assert done.exit_code == 1, done.output
    (finding,) = [f for f in ow.check(made.gather, checks=["values"], inputs="calls.ow").verdicts[0].findings if f.case]
    again = CliRunner().invoke(app, shlex.split(finding.reproduce)[1:])
    assert again.exit_code == 1, again.output


def test_what_cannot_be_captured_is_refused(tmp_path):
    with (
        pytest.raises(CheckError, match="must be given operators, functions of torch or modules"),
        ow.capture(tmp_path / "calls.ow", made.silu),
    ):
        pass


def test_a_dim_that_broadcasts_has_values_in_a_recorded_call(tmp_path, namespace):
    """They were zeros, which show no error of a kernel that leaves the argument out."""

    @ow.op(f"{namespace}::shift")
    def shift(x: Float32[Tensor, "b n"], c: Float32[Tensor, "#b n"]) -> Float32[Tensor, "b n"]:
        return x + c

    shift.python(lambda x, c: x.clone(), name="leaves_c_out")
    shift.python(lambda x, c: (x + c).contiguous(), name="right")
    with ow.capture(tmp_path / "calls.ow", shift):
        shift(torch.randn(4, 5), torch.randn(1, 5))
    verdicts = ow.check(shift, checks=["values"], inputs=tmp_path / "calls.ow").verdicts
    assert {v.kernel: v.status for v in verdicts} == {"leaves_c_out": Status.FAIL, "right": Status.PASS}


def test_values_follow_the_recorded_numbers(tmp_path, namespace):
    @ow.op(f"{namespace}::pick")
    def pick(
        x: Float32[Tensor, " n"], rows: Annotated[Int64[Tensor, " m"], ow.values(0, "k-1")], k: int = 2
    ) -> Float32[Tensor, " m"]:
        return x[rows]

    pick.python(lambda x, rows, k: x[rows.clamp(max=3)], name="only_four")
    pick.python(lambda x, rows, k: x.index_select(0, rows), name="right")
    with ow.capture(tmp_path / "calls.ow", pick):
        pick(torch.randn(90), torch.arange(50), 90)
    verdicts = ow.check(pick, checks=["values"], inputs=tmp_path / "calls.ow").verdicts
    assert {v.kernel: v.status for v in verdicts} == {"only_four": Status.FAIL, "right": Status.PASS}


def test_a_device_is_one_again(tmp_path, namespace):
    @ow.op(f"{namespace}::twice")
    def twice(x: Float32[Tensor, " n"], device: torch.device | None = None) -> Float32[Tensor, " n"]:
        return 2 * x

    twice.python(lambda x, device: x + x, name="right")
    with ow.capture(tmp_path / "calls.ow", twice):
        twice(torch.randn(3), torch.device("cpu"))
    assert ow.check(twice, checks=["values"], inputs=tmp_path / "calls.ow").passed


def test_values_that_cannot_be_drawn_have_to_be_recorded(tmp_path, namespace):
    @ow.op(f"{namespace}::take")
    def take(
        x: Float32[Tensor, " n"], rows: Annotated[Int64[Tensor, " m"], ow.values(3, "n-1")]
    ) -> Float32[Tensor, " m"]:
        return x[rows]

    take.python(lambda x, rows: x[rows].clone(), name="right")
    with ow.capture(tmp_path / "calls.ow", take):
        take(torch.randn(2), torch.tensor([1, 0]))
    with pytest.raises(CheckError, match=r"values must be drawn for a recorded call, got[\s\S]*values=True"):
        ow.check(take, checks=["values"], inputs=tmp_path / "calls.ow")


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_values_of_any_dtype_and_layout_are_recorded(dtype):
    value = torch.tensor([[1.0, 0.0, 1.0]]).to(dtype).t()[:, :1]
    again = tensor_of(_value(record_of(value, values=True)))
    assert torch.equal(
        again.view(torch.uint8) if dtype is torch.float8_e4m3fn else again,
        value.contiguous().view(torch.uint8) if dtype is torch.float8_e4m3fn else value,
    )
