"""The host time of calls: which ways are timed, what a slow kernel shows, and what is refused."""

import json
import time
from pathlib import Path

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor
from typer.testing import CliRunner

import opwright as ow
from opwright.cli import app
from opwright.errors import CheckError
from opwright.timing import calls

BACKWARD = ["operator, recorded", "operator, forward and backward", "reference, forward and backward"]


def scaling(name: str) -> ow.Op:
    @ow.op(f"calls_table::{name}")
    def scale(x: Float[Tensor, " n"], a: float = 2.0) -> Float[Tensor, " n"]:
        return a * x

    return scale


def times(report: ow.results.CallsReport) -> dict[str, ow.results.CallTime]:
    (found,) = report.operators
    return {call.way: call for call in found.ways}


@pytest.mark.slow
def test_every_way_to_call_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_SAMPLES", calls._SAMPLES_QUICK)
    operator = scaling("every")
    operator.python(lambda x, a: torch.mul(x, a), name="library")
    report = ow.bench(operator, device="cpu", calls=True)
    (found,) = report.operators
    assert not report.errors
    assert found.kernel == "library"
    assert found.case["n"] == 1024
    ways = times(report)
    assert list(ways)[:5] == ["operator", "torch.ops", "kernel library", "reference", "inside torch.compile"]
    assert list(ways)[5:] == BACKWARD
    assert [y.ratio for y in found.yardsticks] == [1.0, 1.0, 1.0]
    assert ways["operator, forward and backward"].yardstick == "torch.add, forward and backward"
    assert [step.way for step in found.steps] == ["does the guard hold", "the kernel"]
    assert all(0 < w.us.lo <= w.us.median <= w.us.hi for w in ways.values())
    assert json.loads(json.dumps(report.to_json()))["schema"] == "opwright.calls/1"


@pytest.mark.slow
def test_a_kernel_that_waits_shows() -> None:
    operator = scaling("waits")
    operator.python(lambda x, a: (time.sleep(0.002), a * x)[1], name="waits")
    operator.python(lambda x, a: a * x, name="library")
    ways = times(ow.bench(operator, device="cpu", quick=True, calls=True))
    assert ways["operator"].us.median >= 2000
    assert ways["kernel waits"].us.median >= 2000
    assert "kernel library" in ways
    assert (
        list(times(ow.bench(operator, device="cpu", quick=True, kernels=["library"], calls=True))).count("kernel waits")
        == 0
    )


@pytest.mark.slow
def test_what_has_no_gradient_or_no_guard_has_no_such_rows() -> None:
    @ow.op("calls_table::whole_numbers")
    def whole_numbers(x: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        return x + 1

    @ow.op("calls_table::total")
    def total(xs: list[Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
        return torch.stack(xs).sum(0)

    (found,) = ow.bench(whole_numbers, device="cpu", quick=True, calls=True).operators
    assert [way.way for way in found.ways] == ["operator", "torch.ops", "reference"]
    assert len(found.yardsticks) == 1
    (found,) = ow.bench(total, device="cpu", quick=True, calls=True).operators
    assert found.steps == ()
    assert BACKWARD[0] in [way.way for way in found.ways]


@pytest.mark.slow  # times each way of calling an operator, and builds two
def test_a_way_that_raises_is_an_error_and_the_others_are_timed() -> None:
    operator = scaling("raises")
    operator.python(lambda x, a: a * x, name="right")

    @operator.python(name="raises")
    def raises(x, a):
        raise RuntimeError("out of luck")

    report = ow.bench(operator, device="cpu", quick=True, calls=True)
    assert "kernel right" in times(report)
    assert len(report.errors) == 1
    assert "kernel raises" in report.errors[0]
    assert "out of luck" in report.errors[0]


def test_the_command_prints_a_table_and_refuses_what_does_not_go_with_it(tmp_path: Path) -> None:
    record = tmp_path / "calls.json"
    done = CliRunner().invoke(
        app, ["bench", "opwright.gallery.add", "--calls", "--quick", "--device", "cpu", "--json", str(record)]
    )
    assert done.exit_code == 0, done.output
    assert "× torch.add" in done.output
    assert "does the guard hold" in done.output
    assert json.loads(record.read_text())["operators"][0]["op"] == "gallery::add"
    for option in (["--html", "page.html"], ["--iters", "5"], ["--direction", "forward"]):
        done = CliRunner().invoke(app, ["bench", "opwright.gallery.add", "--calls", *option])
        assert isinstance(done.exception, CheckError) or done.exit_code == 2
        assert option[0] in str(done.exception) + done.output
    with pytest.raises(CheckError, match=r"the kernel must be one of .* got 'fastest'"):
        ow.bench("opwright.gallery.add", kernels=["fastest"], calls=True)


@pytest.mark.parametrize("options", [{"iters": 3}, {"baselines": ()}, {"directions": ("forward",)}, {"resume": "file"},
                                     {"events": ow.Events(finished=print)}])  # fmt: skip
def test_what_times_kernels_is_refused_with_calls(options):
    (name,) = options
    with pytest.raises(ow.errors.CheckError, match=f"{name}= must be left out with calls=True"):
        ow.bench("opwright.gallery.add", calls=True, **options)
