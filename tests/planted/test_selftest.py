"""The self-test holds: every planted fault is caught, by the check that has to, and no right kernel is accused."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from opwright.checks.limits.shortage import WITHOUT_SHORTAGE
from opwright.cli import app
from opwright.planted import run
from opwright.planted.catalogue import FILES, rows
from opwright.planted.run import selftest
from opwright.results import Finding, NotChecked, Planted, SelfTest, Status, Verdict
from opwright.sweep.executor import Done, LocalExecutor


def _row(defect, *caught_by, planted=True, refused=""):
    return Planted(defect, "python", "cpu", planted, caught_by, 0.1, refused)


def test_the_catalogue_has_a_hundred_of_each():
    found = rows()
    assert sum(bool(row.expected) for row in found) >= 100
    assert sum(not row.expected for row in found) >= 100
    assert len({(row.op.contract.qualname, row.kernel) for row in found}) == len(found)


def test_what_is_missed_and_what_is_accused_fail_it():
    right = [_row("a", "values"), _row("b", planted=False), _row("c", refused="no GPU")]
    assert SelfTest({}, tuple(right), 1.0).passed
    missed, accused = _row("d"), _row("e", "values", planted=False)
    found = SelfTest({}, (*right, missed, accused), 1.0)
    assert not SelfTest({}, (*right, missed), 1.0).passed
    assert not SelfTest({}, (*right, accused), 1.0).passed
    assert not SelfTest({}, (), 1.0).passed
    lost = Planted("f", "python", "cpu", True, (), 0.1, "its worker died", lost=True)
    assert not SelfTest({}, (*right, lost), 1.0).passed
    assert SelfTest({}, (*right, lost), 1.0).missed == []
    record = found.to_json()
    assert (found.missed, found.false_alarms) == ([missed], [accused])
    assert record["schema"] == "opwright.selftest/1"
    assert [record[key] for key in ("planted", "caught", "correct", "false_alarms", "refused")] == [2, 1, 2, 1, 1]
    assert record["rows"][0] == {
        "defect": "a", "backend": "python", "device": "cpu", "planted": True, "caught_by": ["values"], "time_s": 0.1,
        "refused": "", "message": "", "lost": False,
    }  # fmt: skip


def test_interrupted_it_keeps_what_is_finished_and_does_not_pass(monkeypatch, tmp_path):
    class Interrupted(LocalExecutor):
        def run(self, units, on_step):
            finding = Finding("values", Status.FAIL, message="wrong")
            yield Done(0, Verdict("selftest::scale", "a", "python", "cpu", Status.FAIL, findings=(finding,)))
            raise KeyboardInterrupt

    monkeypatch.setattr(run, "executor_for", lambda executor, jobs: Interrupted())
    record = tmp_path / "record.json"
    shown = CliRunner().invoke(app, ["selftest", "--only", "elementwise", "--json", str(record)])
    assert shown.exit_code == 130, shown.output
    assert "interrupted: 1 of " in shown.output
    found = json.loads(record.read_text())
    assert found["partial"].startswith("interrupted: 1 of ")
    assert len(found["rows"]) == 1
    assert not SelfTest({}, (_row("a", "values"),), 1.0, partial="interrupted").passed


def test_a_file_that_is_not_there_is_refused():
    shown = CliRunner().invoke(app, ["selftest", "--only", "nothere"])
    assert shown.exit_code == 2
    assert "elementwise" in shown.output


class _Finished(LocalExecutor):
    """An executor that has verdicts already."""

    def __init__(self, status, findings=(), not_checked=()):
        super().__init__(1)
        self.status, self.findings, self.not_checked = status, findings, not_checked

    def run(self, units, on_step):
        for i, unit in enumerate(units):
            op, kernel = unit.task.op.contract.qualname, unit.task.kernel
            yield Done(i, Verdict(op, kernel, "python", "cpu", self.status, "", {}, self.findings, self.not_checked))


def _gradient_of_ranks(executor):
    (result,) = (r for r in selftest(["communication"], executor=executor).results if r.defect.startswith("gradient:"))
    return result


def test_a_fault_is_not_missed_where_its_check_could_not_be_made():
    one_gpu = NotChecked("gradients of ranks", "2 ranks need 2 GPUs, and this machine has 1")
    found = _gradient_of_ranks(_Finished(Status.PASS, not_checked=(one_gpu,)))
    assert (found.refused, found.caught_by) == (one_gpu.why, ())


def test_a_fault_is_missed_by_a_check_that_skipped_some_cases_and_by_one_that_says_nothing():
    skipped = NotChecked.in_cases("gradients of ranks", 2, "n=0", "too little memory")
    passed = Finding("gradients of ranks", Status.PASS)
    for findings, not_checked in (((passed,), (skipped,)), ((), (skipped,)), ((), ())):
        found = _gradient_of_ranks(_Finished(Status.PASS, findings, not_checked))
        assert (found.refused, found.caught_by) == ("", ())


def test_a_fault_is_missed_by_a_check_that_needs_no_machine_and_says_that_it_could_not_run():
    unable = NotChecked("values", "no case could be run")
    found = selftest(["elementwise"], executor=_Finished(Status.PASS, not_checked=(unable,)))
    assert {r.defect for r in found.missed} >= {row.defect for row in rows(["elementwise"]) if row.expected == "values"}


def test_a_kernel_whose_check_had_no_memory_is_neither_accused_nor_found():
    short = Finding("values", Status.INCONCLUSIVE, message="out of memory", remedy=WITHOUT_SHORTAGE)
    found = selftest(["elementwise"], executor=_Finished(Status.INCONCLUSIVE, (short,)))
    assert found.lost == list(found.results)
    assert (found.passed, found.false_alarms, found.missed) == (False, [], [])


def test_what_other_checks_found_counts_where_one_had_no_memory():
    short = Finding("execution context", Status.INCONCLUSIVE, message="out of memory", remedy=WITHOUT_SHORTAGE)
    wrong = Finding("values", Status.FAIL, message="wrong")
    found = selftest(["elementwise"], executor=_Finished(Status.FAIL, (short, wrong)))
    assert not found.lost
    assert len(found.false_alarms) == sum(not row.expected for row in rows(["elementwise"]))


@pytest.mark.slow  # some 20 checks
def test_custom_rules_and_contracts(tmp_path):
    record = tmp_path / "record.json"
    shown = CliRunner().invoke(app, ["selftest", "--only", "registrations", "--json", str(record)])
    assert shown.exit_code == 0, shown.output
    assert "0 false alarms" in shown.output
    found = json.loads(record.read_text())
    assert found["planted"] == found["caught"] > 10


# These take about a minute each; `opwright selftest` runs all of them.
_LONG = ("functions", "communication", "gpu", "peak_memory", "reductions", "elementwise", "deception", "arguments",
         "determinism", "infinities", "models.attention", "models.training", "models.language_model")  # fmt: skip


@pytest.mark.slow  # some 300 checks
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "file",
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in _LONG)) for name in FILES if name != "registrations"],
)
def test_every_fault_is_caught_and_no_right_kernel_accused(file):
    found = selftest([file])
    assert found.missed == []
    assert found.false_alarms == []
