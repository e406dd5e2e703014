"""The result files of formats: what others' tools read of our verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opwright.errors import CheckError
from opwright.judged.result_files import write_results
from opwright.judged.run import judge
from opwright.results import Finding, Status, Verdict
from opwright.results.judged import Judged, JudgeReport, Times
from tests import warm
from tests.judged.definitions import solution, write_dataset
from tests.judged.programs import SOFTMAX

TIMES = Times(us=50.0, lo_us=49.0, hi_us=51.0, samples=30, eager_us=100.0, compiled_us=60.0, limit_us=25.0)


def row(format: str, status: Status, message: str = "", *, check: str = "values", **more: object) -> Judged:
    findings = (Finding(check, status, "n=1", message),) if message else ()
    verdict = Verdict(op="o", kernel="k", backend="python", device="cpu", status=status, findings=findings)
    return Judged(format, f"{message or status}.py", "task", status, verdict=verdict, **more)  # type: ignore[arg-type]


def report_of(*rows: Judged) -> JudgeReport:
    return JudgeReport({}, rows)


def test_eval_results_of_kernelbench(tmp_path: Path) -> None:
    def of(sample: int) -> dict[str, object]:
        return {"problem": "23", "sample": sample}

    rows = [
        row("kernelbench", Status.FAIL, "1 of 4 elements differ", by_rule="correct", published=of(2)),
        row("kernelbench", Status.FAIL, "no compiler", check="build", published=of(1)),
        row("kernelbench", Status.PASS, times=TIMES, published=of(0)),
        row("kernelbench", Status.THIN, "one file", published={}),
    ]
    left_out = write_results(report_of(*rows), tmp_path / "eval_results.json")
    assert left_out == [("one file.py", "its name has no problem and sample")]
    (samples,) = json.loads((tmp_path / "eval_results.json").read_text()).values()
    assert [(s["sample_id"], s["compiled"], s["correctness"]) for s in samples] == [
        (0, True, True), (1, False, False), (2, True, False),
    ]  # fmt: skip
    assert [s["runtime"] for s in samples] == [0.05, -1.0, -1.0]  # ms
    assert samples[0]["ref_runtime"] == 0.1
    assert samples[2]["metadata"]["finding"] == "values: 1 of 4 elements differ"
    assert samples[2]["metadata"]["by_rule"] == "correct"


def test_traces_have_what_their_status_asks_for(tmp_path: Path) -> None:
    published = {"definition": "d", "solution": "s", "workload": {"axes": {"n": 2}, "inputs": {}, "uuid": "1"}}
    messages = {
        "1 of 4 elements differ": "INCORRECT_NUMERICAL", "shape [2], expected [3]": "INCORRECT_SHAPE",
        "output 0 has dtype torch.float32": "INCORRECT_DTYPE", "the kernel raised ValueError: x": "RUNTIME_ERROR",
        "the kernel crashed with SIGSEGV": "RUNTIME_ERROR",
    }  # fmt: skip
    rows = [row("flashinfer-bench", Status.FAIL, message, published=published) for message in messages]
    rows += [
        row("flashinfer-bench", Status.PASS, times=TIMES, published=published),
        row("flashinfer-bench", Status.INCONCLUSIVE, "it did not end", published=published),
        row("flashinfer-bench", Status.FAIL, "no compiler", check="build", published=published),
        row("flashinfer-bench", Status.WARNING, "not timed", published=published),
        row("flashinfer-bench", Status.REFUSED, "no GPU", published=published),
    ]
    left_out = write_results(report_of(*rows), tmp_path / "traces.jsonl")
    assert [candidate for candidate, _ in left_out] == ["it did not end.py", "not timed.py", "no GPU.py"]
    assert left_out[0][1] == "whether it is right is not known: it did not end"
    traces = [json.loads(line) for line in (tmp_path / "traces.jsonl").read_text().splitlines()]
    evaluations = [trace["evaluation"] for trace in traces]
    assert [e["status"] for e in evaluations] == [*messages.values(), "PASSED", "COMPILE_ERROR"]
    for each in evaluations:  # the format's own rules
        assert (each["correctness"] is not None) == (each["status"] in ("PASSED", "INCORRECT_NUMERICAL"))
        assert (each["performance"] is not None) == (each["status"] == "PASSED")
        assert each["environment"]["hardware"]
        assert each["timestamp"]
    assert evaluations[5]["performance"] == {"latency_ms": 0.05, "reference_latency_ms": 0.1, "speedup_factor": 2.0}


def test_a_format_without_such_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"results can be written for kernelbench, .* got pair"):
        write_results(report_of(row("pair", Status.PASS)), tmp_path / "file")


def test_scores_of_formats() -> None:
    assert TIMES.speedup == 2.0
    assert TIMES.sol_score == 0.75  # 1 / (1 + 25 / 75)
    assert Times(us=100.0, lo_us=1, hi_us=1, samples=1, eager_us=100.0, limit_us=25.0).sol_score == 0.5
    assert Times(why_none="it is not timed").speedup == 0
    fails = row("kernelbench", Status.FAIL, "differ", times=TIMES)
    report = report_of(row("kernelbench", Status.PASS, times=TIMES), fails, row("kernelbench", Status.PASS))
    assert [round(report.fast(p), 2) for p in (0, 1, 2)] == [0.33, 0.33, 0]


@pytest.mark.slow  # a whole check, and times
def test_right_candidates_are_timed_and_written(tmp_path: Path) -> None:
    root = write_dataset(tmp_path, solution("right"), solution("wrong", most=1))
    report = judge(root, device="cpu", checks=["values"], times=True)
    times = {Path(r.candidate).stem: r.times for r in report.rows}
    assert times["wrong"] is None
    right = times["right"]
    assert right is not None
    assert not right.why_none
    assert min(right.us, right.eager_us, right.compiled_us, right.limit_us) > 0
    assert (right.tuned_us, right.why_not_tuned) == (0, "")
    assert right.lo_us <= right.us <= right.hi_us
    assert not write_results(report, tmp_path / "traces.jsonl")
    traces = [json.loads(line) for line in (tmp_path / "traces.jsonl").read_text().splitlines()]
    assert {t["solution"]: t["evaluation"]["status"] for t in traces} == {
        "right": "PASSED", "wrong": "INCORRECT_NUMERICAL",
    }  # fmt: skip
    assert traces[0]["workload"]["axes"] == {"batch": 3}
    assert traces[0]["workload"]["inputs"]["eps"] == {"type": "scalar", "value": 1e-05}


@pytest.mark.slow  # a whole check, and times
@pytest.mark.compiler
def test_max_autotune_is_timed_if_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(
        "import torch\nn = 64\ndef product(x, y): return (x @ y).relu()\n"
        "def get_inputs(): return [torch.randn(n, n), torch.randn(n, n)]\n"
    )
    (tmp_path / "ours.py").write_text("import torch\ndef product(x, y): return torch.relu(x @ y)\n")
    paths = [f"{tmp_path}/reference.py:product", f"{tmp_path}/ours.py:product"]
    (row,) = judge(*paths, device="cpu", checks=["values"], max_autotune=True).rows
    assert row.times is not None
    assert min(row.times.us, row.times.eager_us, row.times.compiled_us, row.times.tuned_us) > 0
    assert not row.times.why_not_tuned


CANDIDATE = """
import time, torch
from torch import nn
class ModelNew(nn.Module):
    def forward(self, x):
        REPLACES
        return torch.softmax(x, dim=1)
"""


@pytest.mark.slow  # whole checks
def test_the_command_writes_results_and_times_nothing_where_a_timer_is_replaced(tmp_path: Path) -> None:
    folder, problems = tmp_path / "runs" / "mine", tmp_path / "KernelBench" / "level1"
    folder.mkdir(parents=True)
    problems.mkdir(parents=True)
    (problems / "23_Softmax.py").write_text(SOFTMAX.replace("16384", "32"))
    replaces = "time.perf_counter_ns = time.monotonic_ns"
    (folder / "level_1_problem_23_sample_0_kernel.py").write_text(CANDIDATE.replace("REPLACES", "pass"))
    options = ("--device", "cpu", "--write-results", tmp_path / "eval_results.json")
    run = warm.run_module("opwright", "judge", folder, *options)
    assert run.returncode == 0, run.stdout + run.stderr
    (samples,) = json.loads((tmp_path / "eval_results.json").read_text()).values()
    assert [(s["sample_id"], s["correctness"], s["runtime"]) for s in samples] == [(0, True, -1.0)]
    again = warm.run_module("opwright", "judge", folder, *options)
    assert again.returncode != 0
    assert "--write-results must name a new file" in again.stdout + again.stderr
    (folder / "level_1_problem_23_sample_0_kernel.py").write_text(CANDIDATE.replace("REPLACES", replaces))
    report = judge(folder, device="cpu", checks=["values"], times=True)
    why_none = report.rows[0].times.why_none  # type: ignore[union-attr]
    assert "timers must be as they were, got a candidate that replaces time.perf_counter_ns" in why_none
