"""Runs of many candidates: a fault of one is one line, the rest goes on, and nothing that was judged is lost."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from opwright.cli import app
from opwright.judged import run
from opwright.judged.formats import read_tasks
from opwright.judged.run import judge
from opwright.judged.sources import line_of
from opwright.report.candidates import brief
from opwright.report.files import write_text
from opwright.sweep.journal import Journal
from tests.judged.programs import SOFTMAX

RIGHT = (
    "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return torch.softmax(x, 1)\n"
)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two right candidates for one problem, in KernelBench's folders."""
    problems, folder = tmp_path / "KernelBench" / "level1", tmp_path / "runs" / "mine"
    problems.mkdir(parents=True)
    folder.mkdir(parents=True)
    (problems / "23_Softmax.py").write_text(SOFTMAX)
    for i in range(2):
        candidate(folder.parent, i).write_text(RIGHT)
    return folder.parent


def candidate(runs: Path, number: int, problem: int = 23) -> Path:
    return runs / "mine" / f"level_1_problem_{problem}_sample_{number}_kernel.py"


def test_what_is_no_candidate_is_said(runs: Path) -> None:
    candidate(runs, 2).write_text("class ModelOld: pass\n")
    candidate(runs, 3).write_bytes(b"\xff\xfe\x00")
    candidate(runs, 4).write_text(f"import nothing_like_it\n{RIGHT}")
    (runs / "mine" / "notes.py").write_text("a helper\n")
    (task,), unread = read_tasks([str(runs), str(runs / "missing.py")], runs, "kernelbench")
    assert len(task.candidates) == 2
    assert {Path(path).name: why.splitlines()[0] for path, why in unread} == {
        candidate(runs, 2).name: "it must define ModelNew or Model",
        candidate(runs, 3).name: "it must define ModelNew or Model",
        candidate(runs, 4).name: "the module 'nothing_like_it' must be installed",
        "missing.py": "it does not exist",
    }


def test_a_candidate_is_not_compared_with_another_problem(runs: Path) -> None:
    candidate(runs, 0, problem=99).write_text(RIGHT)
    given = runs.parent / "KernelBench" / "level1" / "23_Softmax.py"
    tasks, unread = read_tasks([str(given), str(candidate(runs, 0, problem=99))], runs, "kernelbench")
    assert not [c for task in tasks for c in task.candidates]
    assert "no problem belongs to it" in unread[0][1]
    plain = runs.parent / "problem.py"  # its name says no number
    plain.write_text(SOFTMAX)
    (task,), unread = read_tasks([str(plain), str(candidate(runs, 0, problem=99))], runs, "kernelbench")
    assert (len(task.candidates), unread) == (1, [])


@pytest.mark.parametrize(
    ("message", "short"),
    [
        ("1 of 3 elements differ\n  at (0,): expected 1", "1 of 3 elements differ at (0,): expected 1"),
        (
            "the kernel raised RuntimeError: Error building extension 'bad': [1/2] c++ -MMD …\nFAILED: main.o\n"
            "/a/b/main.cpp:2:45: error: no member named 'softmaxx'\n  2 | code",
            "the kernel raised RuntimeError: Error building extension 'bad': main.cpp:2:45: error: no member named "
            "'softmaxx'",
        ),
        ("word " * 100, " ".join(["word"] * 64) + " …"),
        ("", ""),
    ],
)
def test_a_finding_is_short_in_a_table(message: str, short: str) -> None:
    assert brief(message) == short


@pytest.mark.exhaustive
@pytest.mark.slow  # it judges three times
def test_a_run_is_taken_up_again_unless_a_candidate_has_changed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.parent)

    def judged() -> dict[str, str]:
        """The verdicts of a new process."""
        options = ["--device", "cpu", "--resume", "done.jsonl", "--json", "r.json"]
        subprocess.run(
            [sys.executable, "-m", "opwright", "judge", str(runs), *options], check=False, capture_output=True
        )
        return {Path(row["candidate"]).name: row["status"] for row in json.loads(Path("r.json").read_text())["rows"]}

    names = [candidate(runs, i).name for i in range(2)]
    first = judged()
    assert first == dict.fromkeys(names, "warning")
    kept = Path("done.jsonl").read_text()
    assert judged() == first
    assert Path("done.jsonl").read_text().count("result") == kept.count("result"), (
        "finished verdicts are not added again"
    )
    candidate(runs, 0).write_text(RIGHT.replace("softmax(x, 1)", "softmax(x, 1) * 2"))
    assert judged() == {names[0]: "fail", names[1]: "warning"}


@pytest.mark.exhaustive
@pytest.mark.slow  # it judges two candidates, twice
def test_a_full_disk_under_resume_ends_no_run(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.parent)
    candidate(runs, 1).write_text(RIGHT.replace("softmax(x, 1)", "softmax(x, 1) * 2"))
    add, written = Journal.add, os.write

    def full(journal: Journal, item: Any, result: Any) -> None:
        def no_space(descriptor: int, data: bytes) -> int:
            if descriptor == journal._descriptor:
                raise OSError(errno.ENOSPC, "No space left on device")
            return written(descriptor, data)

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", no_space)
            add(journal, item, result)

    command = ["judge", str(runs), "--device", "cpu", "--resume", "done.jsonl", "--json", "r.json"]
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", full)
        done = CliRunner().invoke(app, command)
    said = "2 results could not be written to done.jsonl: No space left on device"
    assert (done.exit_code, done.output.count(said)) == (2, 1), done.output
    report = json.loads(Path("r.json").read_text())
    assert sorted(row["status"] for row in report["rows"]) == ["fail", "warning"]
    assert (report["unwritten"], report["partial"]) == (said, "")
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, json.loads(Path("r.json").read_text())["unwritten"]) == (1, ""), done.output
    assert Path("done.jsonl").read_text().count('"result"') == 2


@pytest.mark.parametrize(
    ("options", "raised", "said"),
    [
        ([], KeyboardInterrupt, "no candidate was checked, and 0 of 1 contracts were inferred; nothing is kept"),
        (["--json", "r.json"], KeyboardInterrupt, "no candidate was checked"),
        ([], ValueError, ""),
    ],
)
def test_ctrl_c_before_the_first_check_is_one_line(
    runs: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], raised: type[BaseException], said: str
) -> None:
    def interrupted(*_: object) -> Any:
        raise raised

    monkeypatch.chdir(runs.parent)
    monkeypatch.setattr(run, "contract_of", interrupted)
    done = CliRunner().invoke(app, ["judge", str(runs), *options])
    assert (done.exit_code == 130) is bool(said)
    assert said in done.output
    assert done.output.count("interrupted") == done.output.count("\n") == bool(said)
    assert not Path("r.json").exists()


def test_ctrl_c_before_a_command_has_begun_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("opwright.report.files.refuse_unwritable", interrupted)
    done = CliRunner().invoke(app, ["judge", "a.py:f", "b.py:f"])
    assert done.exit_code == 130
    assert done.output == "opwright: interrupted: opwright judge has not finished; files that it has written stay\n"


def test_contracts_that_were_inferred_before_ctrl_c_stay(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([{"error": "none"}])

    def infer(*_: object) -> Any:
        try:
            return next(answers)
        except StopIteration:
            raise KeyboardInterrupt from None

    other = runs.parent / "KernelBench" / "level1" / "24_LogSoftmax.py"
    other.write_text(SOFTMAX)
    candidate(runs, 0, problem=24).write_text(RIGHT)
    monkeypatch.setattr(run, "contract_of", infer)
    with pytest.raises(KeyboardInterrupt, match=r"1 of 2 contracts were inferred; they stay in .*kept$"):
        judge(runs, write_contract=runs.parent / "kept")


@pytest.mark.slow  # it judges two candidates
def test_ctrl_c_while_candidates_are_timed_keeps_their_verdicts(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(run, "times_of", interrupted)
    report = judge(runs, times=True, checks=["values"], device="cpu")
    assert report.partial == "interrupted: all were checked, and 0 were timed"
    assert all(row.status.is_right for row in report.rows)


@pytest.mark.slow  # it judges two candidates
def test_a_file_that_cannot_be_written_leaves_the_others(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Path.replace

    def full(file: Path, target: Path) -> Path:
        if target.suffix == ".html":
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(file, target)

    monkeypatch.chdir(runs.parent)
    monkeypatch.setattr(Path, "replace", full)
    options = ["--device", "cpu", "--html", "r.html", "--json", "r.json", "--write-results", "w.json"]
    done = CliRunner().invoke(app, ["judge", str(runs), *options])
    assert done.exit_code == 2, done.output
    assert "cannot write r.html: No space left on device" in done.output
    assert len(json.loads(Path("r.json").read_text())["rows"]) == len(json.loads(Path("w.json").read_text())["23"]) == 2
    assert not list(Path().glob("*.partial"))


def test_a_file_that_does_not_fit_takes_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(Exception, match="No space left on device"):
        write_text("text", tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_a_candidate_begins_where_its_function_does(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\n\n\nclass ModelNew2: pass\nclass ModelNew:\n    pass\nf = 3\n")
    assert [line_of(tmp_path / "a.py", name) for name in ("ModelNew", "f", "nothing")] == [5, 7, 1]
    assert line_of(tmp_path / "missing.py", "f") == 1
