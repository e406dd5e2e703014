"""Records of benchmarks: few, small, cited by a page, and listed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from tests import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import keep_record
import list_records
import records

_KILOBYTES = 1000
_NAMED = re.compile(r"benchmarks/results/([\w.-]+\.(?:json|txt))")


def pages() -> Iterator[tuple[str, str]]:
    """The texts that a reader is given: pages, and docstrings. The list of records is none of them."""
    documents = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *(REPOSITORY / "src").rglob("*.md")]
    for file in documents:
        yield file.relative_to(REPOSITORY).as_posix(), file.read_text()
    for file in sorted((REPOSITORY / "src").rglob("*.py")):
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield file.relative_to(REPOSITORY).as_posix(), text


def test_pages_cite_every_record_and_no_other():
    cited = {name for _, text in pages() for name in _NAMED.findall(text)}
    kept = {file.name for file in records.all_records()}
    assert sorted(kept - cited) == [], "no page cites these"
    assert sorted(cited - kept) == [], "these are not there"


def test_scripts_name_records_that_exist():
    scripts = (REPOSITORY / "benchmarks").glob("*.py")
    named = {name for script in scripts for name in re.findall(r"\d{4}-\d\d-\d\d-[\w.-]+", script.read_text())}
    assert sorted(named - {file.name for file in records.all_records()}) == []


def test_records_are_small():
    sizes = {file.name: file.stat().st_size for file in records.all_records()}
    assert {name: size for name, size in sizes.items() if size >= 60 * _KILOBYTES} == {}
    assert sum(sizes.values()) < 1500 * _KILOBYTES


def test_each_record_says_what_it_is_about_and_is_named_so():
    for file in records.all_records():
        about = records.about(file)
        assert file.name.startswith(f"{about.date}-{about.machine}-"), file.name
        assert all((about.subject, about.torch, about.shows, about.made_by)), file.name
        assert re.match(rf"^{re.escape(about.machine)}\b", about.machine)


def test_each_subject_has_one_record_for_each_machine():
    found = Counter((about.subject, about.machine) for about in map(records.about, records.all_records()))
    assert [each for each, count in found.items() if count > 1] == []


def test_the_table_of_machines_has_those_of_the_records():
    text = list_records.README.read_text().partition("| machine | hardware |")[2].partition("\n\n")[0]
    described = {name.strip() for row in text.splitlines()[2:] for name in row.split("|")[1].split(",")}
    assert described == {records.about(file).machine for file in records.all_records()}


def test_the_list_of_records_is_up_to_date():
    text = list_records.README.read_text()
    assert text == list_records.with_list(text), "run: python benchmarks/list_records.py"


def test_the_table_of_scripts_has_every_script():
    text = list_records.README.read_text()
    scripts = {f.name for f in (REPOSITORY / "benchmarks").iterdir() if f.suffix in (".py", ".sh")}
    assert sorted(name for name in scripts if f"`{name}`" not in text) == []
    rows = text.partition("## Scripts")[2].partition("\n\n")[0]
    assert sorted(set(re.findall(r"(?m)^\| `([\w.]+)`", rows)) - scripts) == []


def test_a_record_is_condensed_to_what_is_not_as_it_should_be():
    common = {"backend": "python", "refused": "", "message": ""}
    rows = [
        {"defect": f"fault {n}", "planted": n < 9, "caught_by": ["values"] if n < 8 else [], "time_s": n, **common}
        for n in range(10)
    ]
    kept = keep_record.condensed({"schema": "opwright.selftest/1", "planted": 9, "rows": rows})
    assert kept["planted"] == 9
    assert kept["rows"]["planted faults caught by"] == {"values": 8}
    assert [row["defect"] for row in kept["rows"]["missed or accused"]] == ["fault 8"]
    assert kept["rows"]["seconds of a row"]["most"] == 9
    findings = [
        {"check": "values", "status": "fail", "message": "wrong", "coverage": {"run": 3, "generated": 4}},
        {"check": "memory", "status": "pass", "message": ""},
    ]
    verdict = {"op": "demo::f", "kernel": "k", "backend": "python", "device": "cpu", "status": "fail", "reason": ""}
    verdict = {**verdict, "seconds": 1.0, "parts": {}, "findings": findings}
    (short,) = keep_record.condensed({"schema": "opwright.check/3", "verdicts": [verdict]})["verdicts"]
    assert short["findings"] == [{"check": "values", "status": "fail", "message": "wrong"}]
    assert short["cases of values"] == {"run": 3, "generated": 4}


def test_a_record_replaces_the_older_one_of_its_subject_and_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    raw = tmp_path.parent / f"{tmp_path.name}.json"
    raw.write_text('{"torch": "2.14.1+cu130", "us": 1.2345678}')
    for date in ("2026-01-01", "2026-01-02"):
        options = ["--subject", "CUDA graphs", "--machine", "h100", "--shows", "fast", "--made-by", "a command"]
        monkeypatch.setattr(sys, "argv", ["keep_record.py", str(raw), *options, "--date", date])
        keep_record.main()
    (kept,) = records.all_records()
    assert kept.name == "2026-01-02-h100-cuda-graphs.json"
    assert records.about(kept) == records.About("CUDA graphs", "2026-01-02", "h100", "2.14.1", "fast", "a command")
    assert records.formatted(records.rounded(1.2345678)) in kept.read_text()


@pytest.mark.parametrize("missing", ["--subject", "--shows"])
def test_a_record_is_kept_only_with_what_it_is_about(missing, tmp_path):
    options = {"--subject": "s", "--machine": "cpu", "--shows": "w", "--made-by": "c"}
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "keep_record.py"), str(tmp_path / "r.json")]
    given = [part for name, value in options.items() if name != missing for part in (name, value)]
    done = subprocess.run([*command, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert missing in done.stderr
