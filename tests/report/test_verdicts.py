"""Findings are sorted and none is lost; coverage is shown once, and survives a file."""

import json

import pytest

from opwright.report.records import read
from opwright.report.verdicts import (
    counted,
    decisive_checks,
    findings_of,
    outcome,
    problems,
    remark,
    values_coverage,
    worst_first,
)
from opwright.results import CheckReport, Coverage, Finding, Status
from opwright.results.json_form import from_json
from tests.report.sample_records import every_status, make_check, make_verdict


def finding(status, check="values", **changes):
    return Finding(check, status, **changes)


def test_verdicts_are_listed_worst_first_and_refusals_last():
    assert [v.status for v in worst_first(every_status())] == [
        "fail", "inconclusive", "thin", "warning", "warning", "pass", "refused",
    ]  # fmt: skip
    assert [v.op for v in worst_first(every_status()) if v.status == "warning"] == ["gallery::add", "gallery::sin"]
    assert counted(every_status(), Status.FAIL) == (
        "1 inconclusive, 1 thin, 2 with warnings, 1 passed, 1 cannot run here"
    )


def test_problems_are_failures_and_then_what_did_not_end_whatever_else_was_found():
    endless = make_verdict(kernel="a", status=Status.INCONCLUSIVE, findings=(finding(Status.INCONCLUSIVE),))
    both = make_verdict(
        kernel="b", status=Status.FAIL,
        findings=(finding(Status.INCONCLUSIVE, "gradients"), finding(Status.WARNING), finding(Status.FAIL, "metadata")),
    )  # fmt: skip
    assert [(v.kernel, f.check) for v, f in problems([endless, both])] == [
        ("b", "metadata"), ("a", "values"), ("b", "gradients"),
    ]  # fmt: skip
    assert problems([make_verdict(status=Status.WARNING, findings=(finding(Status.WARNING),))]) == []


@pytest.mark.parametrize("status", [Status.FAIL, Status.INCONCLUSIVE, Status.THIN, Status.WARNING])
def test_a_status_without_a_finding_is_explained_by_the_reason(status):
    verdict = make_verdict(status=status, reason="the worker ended", findings=(finding(Status.PASS),))
    assert [(f.status, f.message) for f in findings_of(verdict)] == [(status, "the worker ended"), (Status.PASS, "")]


@pytest.mark.parametrize("status", [Status.PASS, Status.REFUSED])
def test_a_pass_and_a_refusal_need_no_finding(status):
    assert findings_of(make_verdict(status=status, reason="no GPU", findings=())) == []


def test_the_decisive_checks_are_those_with_the_verdicts_status():
    findings = (finding(Status.PASS), finding(Status.WARNING, "streams"), finding(Status.THIN, "gradients"))
    assert decisive_checks(make_verdict(status=Status.THIN, findings=findings)) == ["gradients"]
    assert decisive_checks(make_verdict(findings=findings[:1])) == []


def test_a_reason_that_repeats_a_finding_is_no_remark():
    warning = finding(Status.WARNING, "streams", message="it synchronises")
    assert remark(make_verdict(status=Status.WARNING, reason="it synchronises", findings=(warning,))) == ""
    assert remark(make_verdict(status=Status.WARNING, reason="in the CUDA simulator", findings=(warning,)))
    assert remark(make_verdict(reason="in the CUDA simulator")) == "in the CUDA simulator"
    assert remark(make_verdict(status=Status.FAIL, reason="failed: values")) == ""


def test_coverage_comes_before_the_message_unless_both_say_the_same():
    assert outcome(finding(Status.PASS, coverage=Coverage(2, 3), message="static and dynamic")) == (
        "2 of 3 cases; static and dynamic"
    )
    assert outcome(finding(Status.PASS, coverage=Coverage(2, 3), message="2 cases")) == "2 of 3 cases"
    assert outcome(finding(Status.PASS, coverage=Coverage(2, 3))) == "2 of 3 cases"
    assert outcome(finding(Status.PASS, message="2 cases")) == "2 cases"


def test_the_coverage_of_a_kernel_is_that_of_its_values():
    gradients = finding(Status.PASS, "gradients", coverage=Coverage(1, 5))
    assert values_coverage(make_verdict(findings=(gradients,))) is None
    values = finding(Status.PASS, coverage=Coverage(9, 9))
    assert values_coverage(make_verdict(findings=(gradients, values))) == Coverage(9, 9)


def test_coverage_and_remedy_survive_a_file():
    record = json.loads(json.dumps(make_check(*every_status())))
    assert from_json(CheckReport, record).verdicts == every_status()
    thin = next(v for v in record["verdicts"] if v["status"] == "thin")
    assert thin["findings"][0]["coverage"] == {"run": 12, "generated": 164}
    assert thin["findings"][0]["remedy"].startswith("State sizes")


def test_a_record_without_coverage_and_remedies_can_be_read():
    record = json.loads(json.dumps(make_check(*every_status())))
    for verdict in record["verdicts"]:
        for found in verdict["findings"]:
            del found["coverage"], found["remedy"]
    (report,) = read([record]).checks
    assert [v.status for v in report.verdicts] == [v.status for v in every_status()]
    assert all(values_coverage(v) is None for v in report.verdicts)
