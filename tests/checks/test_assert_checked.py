"""``ow.assert_checked`` and ``report.raise_if_failed``: what the error says, and when there is none."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.results import BenchReport, CheckReport, Finding, MutationReport, SelfTest, Status, Verdict

OPERATOR = """
import time
from jaxtyping import Float32
from torch import Tensor
import opwright as ow

@ow.op("{name}::twice")
def twice(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return 2 * x

@twice.python
def k(x):
    return {result}
"""


def one(status, *findings, reason=""):
    return CheckReport({"cpu": "x" * 500}, (Verdict("demo::f", "k", "cpp", "cpu", status, reason, findings=findings),))


def test_a_wrong_kernel_raises_with_its_smallest_case_and_the_command(namespace):
    @ow.op(f"{namespace}::twice")
    def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return 2 * x

    twice.python(lambda x: 2 * x, name="right")
    options = {"level": "smoke", "device": "cpu", "checks": ["values"]}
    report = ow.assert_checked(twice, **options)
    assert report.passed
    assert [v.kernel for v in report] == ["right"]
    twice.python(lambda x: 3 * x, name="wrong")
    with pytest.raises(AssertionError) as caught:
        ow.assert_checked(twice, **options)
    assert isinstance(caught.value, ow.errors.CheckFailedError)
    text = str(caught.value)
    assert text.startswith("1 failed, 1 passed\n\n✗ ")
    for part in ("twice wrong on cpu: values", "smallest failing case: n=1 ", "elements differ", "again: ow.check("):
        assert part in text
    assert "'Intel" not in text
    assert [v.kernel for v in caught.value.report.verdicts if v.failures] == ["wrong"]


@pytest.mark.slow
def test_pytest_shows_the_text_at_the_line_of_the_test(tmp_path, namespace):
    file = tmp_path / "test_it.py"
    test = "def test_twice():\n    ow.assert_checked(twice, level='smoke', checks=['values'], device='cpu')\n"
    file.write_text(OPERATOR.format(name=namespace, result="3 * x") + test)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(file)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "E       opwright.errors.CheckFailedError: 1 failed" in run.stdout
    assert "E         smallest failing case: n=1 " in run.stdout
    assert "test_it.py:twice --kernel k" in run.stdout
    assert "checks/run.py" not in run.stdout
    assert "results/check.py" not in run.stdout


@pytest.mark.parametrize(
    ("status", "raises", "raises_if_strict"),
    [
        (Status.FAIL, True, True),
        (Status.INCONCLUSIVE, True, True),
        (Status.THIN, False, True),
        (Status.WARNING, False, True),
        (Status.PASS, False, False),
        (Status.REFUSED, True, True),
    ],
)
def test_which_reports_raise(status, raises, raises_if_strict):
    report = one(status, Finding("values", status, "n=5", "what is found", "opwright check x"))
    for strict, expected in ((False, raises), (True, raises_if_strict)):
        if not expected:
            report.raise_if_failed(strict=strict)
            continue
        with pytest.raises(ow.errors.CheckFailedError) as caught:
            report.raise_if_failed(strict=strict)
        assert caught.value.report is report
        assert status is Status.REFUSED or "what is found" in str(caught.value)


def test_what_raises_although_nothing_failed():
    for report, text in (
        (CheckReport({}, ()), "nothing was checked"),
        (CheckReport({}, one(Status.PASS).verdicts, partial="interrupted: 1 of 2 kernels"), "1 passed; interrupted: 1"),
        (one(Status.REFUSED, reason="there is no GPU"), "demo::f k on cpu: cannot run here\n  there is no GPU"),
        (one(Status.INCONCLUSIVE, reason="the worker was lost"), "? demo::f k on cpu: check\n  the worker was lost"),
    ):
        with pytest.raises(ow.errors.CheckFailedError) as caught:
            report.raise_if_failed()
        assert text in str(caught.value)


def test_records_have_a_repr_of_one_line():
    finding = Finding("values", Status.FAIL, "n=5", "1 of 5 elements differ\n" * 20, "opwright check x")
    report = one(Status.FAIL, finding, Finding("memory", Status.PASS))
    assert repr(report) == "<CheckReport: 1 failed>"
    assert repr(report.verdicts) == "(<Verdict demo::f k on cpu: fail (values)>,)"
    assert repr(report.verdicts[0].findings) == "(<Finding values: fail, n=5>, <Finding memory: pass>)"
    assert repr(one(Status.PASS, Finding("memory", Status.PASS)).verdicts[0]) == "<Verdict demo::f k on cpu: pass>"
    assert repr(CheckReport({}, ())) == "<CheckReport: nothing was checked>"
    assert repr(BenchReport({}, (), errors=("x",))) == "<BenchReport: 0 measurements, 1 errors>"
    assert repr(MutationReport({}, ())) == "<MutationReport: 0 mutants of 0 kernels, 0 survive>"
    assert repr(SelfTest({}, (), 1.0)) == "<SelfTest: 0 kernels, 0 missed, 0 false alarms>"


def test_the_error_can_be_sent_to_another_process():
    with pytest.raises(ow.errors.CheckFailedError) as caught:
        one(Status.FAIL, Finding("values", Status.FAIL, "n=5")).raise_if_failed()
    for error in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert str(error) == str(caught.value)
        assert error.report == caught.value.report
