"""``opwright demo``: exit codes, the output on a machine without tools, and that the wrong kernel is found."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opwright import gallery
from opwright.cli import app, story
from opwright.results import Finding, Status
from tests.warm import run_module

SMALL = story._System("outer products", story._kernels("outer_sum", "outer_sum:matmul"))


def run(*arguments):
    return CliRunner().invoke(app, ["demo", *arguments], env={"COLUMNS": "80"})


@pytest.fixture
def small(monkeypatch):
    """The story with a system that is checked in a second, and nothing to time."""
    monkeypatch.setattr(story, "_SYSTEMS", (SMALL,))
    monkeypatch.setattr(story, "_COMPARISONS", ())


@pytest.mark.compiler
def test_the_wrong_kernel_is_found_with_its_file_and_line(small):
    done = run()
    assert done.exit_code == 0, done.output
    found = re.search(r"scale\.cu:(\d+): out-of-bounds", done.output)
    source = Path(gallery.__file__).parent / "wrong" / "scale.cu"
    assert str(source) in done.output
    assert "out[i] = a * x[i];" in source.read_text().splitlines()[int(found[1]) - 1]
    assert "1 passed; the wrong one was found" in done.output
    assert "2/2 FAIL    wrong::scale cuda on cpu-sim" in done.output
    assert "as expected" in done.output


def test_the_wrong_kernels_are_no_part_of_the_gallery():
    assert not [name for name in gallery.OPERATORS if "wrong" in name]


@pytest.fixture
def python_only(small, monkeypatch):
    """Without the kernel that needs a compiler."""
    from opwright.gallery import wrong

    monkeypatch.delitem(wrong.FAULTS, "cuda")


def test_without_the_simulator_the_wrong_kernel_is_one_in_python_and_its_line_is_named(python_only):
    done = run()
    assert done.exit_code == 0, done.output
    assert re.search(r"scale_python\.py:\d+:\n +out\[i\] = a \* x\[i\]", done.output)
    assert "IndexError" in done.output


def replaced(report, status, finding):
    import dataclasses

    verdicts = tuple(dataclasses.replace(v, status=status, findings=(finding,)) for v in report.verdicts)
    return dataclasses.replace(report, verdicts=verdicts)


@pytest.fixture
def checks(monkeypatch):
    """Replace the result of an operator's checks."""
    from opwright.checks import run as module

    real, endings = module.check, {}

    def check(*targets, **options):
        report = real(*targets, **options)
        ending = endings.get(report.verdicts[0].op)
        return replaced(report, *ending) if ending else report

    monkeypatch.setattr(module, "check", check)
    return endings


def test_a_wrong_kernel_that_passes_is_a_failure_of_the_demo(python_only, checks):
    checks["wrong::scale"] = Status.PASS, Finding("values", Status.PASS)
    done = run()
    assert done.exit_code == 1
    assert "NOT found" in done.output


def test_a_system_that_fails_is_a_failure_of_the_demo(python_only, checks):
    checks["gallery::outer_sum"] = Status.FAIL, Finding("values", Status.FAIL, "n=5", "differs", "opwright check z")
    done = run()
    assert done.exit_code == 1
    assert "opwright check z" in done.output


def test_a_demo_that_can_run_nothing_says_so_with_its_exit_code(python_only, checks):
    checks["gallery::outer_sum"] = Status.REFUSED, Finding("values", Status.PASS)
    assert run().exit_code == 3


def test_what_was_timed_is_shown_and_a_wrong_timed_output_is_a_failure(python_only, monkeypatch):
    from opwright.timing import run as timing

    reports = []
    sizes = {"n": [64], "i": [2], "j": [2]}
    comparison = story._Comparison("opwright.gallery.outer_sum:outer_sum", {"cpu": ("matmul",)}, sizes)
    monkeypatch.setattr(story, "_COMPARISONS", (comparison,))
    real = timing.measure

    def measure(request):
        reports.append(real(request))
        return reports[-1]

    monkeypatch.setattr(timing, "measure", measure)
    done = run()
    assert done.exit_code == 0, done.output
    (report,) = reports
    assert {m.kernel for m in report.measurements} == {"matmul", "reference"}
    assert report.roofline == (), "limits take a minute to measure, the first time"
    assert re.search(r"matmul \(Python\).*(FASTER|SLOWER|SAME|UNCLEAR) × [\d.,]+", done.output)


def test_every_kernel_and_target_of_the_story_exists():
    from opwright.runtime.targets import load_target

    for system in story._SYSTEMS:
        for target, kernel in system.kernels:
            (operator,) = load_target(target)
            assert kernel in operator.kernels, (target, kernel)
        assert all(name.startswith("gallery::") for name in system.names)
    for comparison in story._COMPARISONS:
        (operator,) = load_target(comparison.target)
        assert {k for names in comparison.kernels.values() for k in names} <= operator.kernels.keys()


def test_a_named_module_is_checked_with_all_of_its_kernels_and_all_with_every_check(monkeypatch):
    asked = []

    def run_and_show(targets, json, html, verbose, **options):
        asked.append((list(targets), options.get("level"), bool(options.get("checks"))))
        raise SystemExit(0)

    monkeypatch.setattr(sys.modules["opwright.cli.demo"], "run_and_show", run_and_show)
    run("outer_sum"), run("outer_sum", "--all"), run("--all")
    assert asked == [
        (["opwright.gallery.outer_sum"], "smoke", True),
        (["opwright.gallery.outer_sum"], None, False),
        (list(gallery.OPERATORS), None, False),
    ]


@pytest.mark.slow
def test_without_a_compiler_nothing_crashes_and_the_log_is_short(tmp_path):
    done = run_module(
        "opwright", "demo", "--json", "demo.json", "--html", "demo.html", cwd=tmp_path,
        env={"COLUMNS": "80", "PATH": "/nonexistent", "CXX": "", "MOJO": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "→ install g++ (apt install g++), or set CXX" in done.stdout
    assert re.search(r"scale_python\.py:\d+", done.stdout)
    *progress, found, last = done.stderr.splitlines()
    assert len(progress) == 16, done.stderr
    assert found.startswith("✗ wrong::scale python on cpu: values")
    assert last.startswith("17/17 FAIL    wrong::scale python on cpu")
    assert len(done.stdout.splitlines()) < 75
    record = json.loads((tmp_path / "demo.json").read_text())
    assert not [v for v in record["verdicts"] if v["status"] == "fail"], "the one that has to fail is not among them"
    assert "matmul" in (tmp_path / "demo.html").read_text()
