"""Candidates are confined where the system allows it, and no code of a task runs in the process of the command."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from opwright.errors import CheckError
from opwright.judged import run
from opwright.judged.run import judge
from opwright.results import Status
from opwright.results.judged import JudgeReport
from opwright.workers.sandbox import Sandbox, sandbox_of_this_system

needs_landlock = pytest.mark.skipif(not sandbox_of_this_system().version, reason="this system has no Landlock")
REFERENCE = """
import os, torch
n = 64
def double(x): return 2 * x
def get_inputs(): return [torch.randn(n)]
"""
HOSTILE = """
import os, socket, subprocess
from pathlib import Path
OUTSIDE = Path(__file__).parent

def writes_outside(x):
    (OUTSIDE / "written").write_text("text")
    return 2 * x

def removes_a_file(x):
    (OUTSIDE / "kept").unlink()
    return 2 * x

def writes_by_a_program(x):
    subprocess.run(["sh", "-c", f"echo text > {OUTSIDE}/written"], check=True)
    return 2 * x

def writes_a_device(x):
    (Path("/dev") / "written").write_text("text")
    return 2 * x

def connects(x):
    socket.create_connection(("127.0.0.1", PORT), 1).close()
    return 2 * x

def ends_its_parent(x):
    os.kill(os.getppid(), 9)
    return 2 * x
"""
RIGHT = """
import socket, subprocess, tempfile, torch
from pathlib import Path
OUTSIDE = Path(__file__).parent

def uses_temporary_files(x):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "a")
        file.write_text("text")
        file.rename(Path(folder, "b"))
        assert (OUTSIDE / "kept").read_text() == "text"
        subprocess.run(["sh", "-c", "echo > /dev/null"], check=True)
        shared = torch.ones(4).share_memory_()
        assert shared.is_shared()
    return 2 * x

def talks_to_itself(x):
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"a")
        return 2 * x if other.recv(1) else x
"""


def judged(folder: Path, text: str, *, sandbox: str, reference: str = REFERENCE) -> JudgeReport:
    (folder / "kept").write_text("text")
    (folder / "reference.py").write_text(reference)
    (folder / "ours.py").write_text(text)
    names = [line[4:].partition("(")[0] for line in text.splitlines() if line.startswith("def ")]
    candidates = [f"{folder}/ours.py:{name}" for name in names]
    report = judge(f"{folder}/reference.py:double", *candidates, checks=["values"], sandbox=sandbox)
    assert len(report.rows) == len(names)
    return report


@needs_landlock
@pytest.mark.slow  # whole checks
def test_a_candidate_writes_only_into_scratch_folders_and_has_no_network(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        report = judged(tmp_path, HOSTILE.replace("PORT", str(server.getsockname()[1])), sandbox="on")
    for row in report.rows:
        assert row.status is Status.FAIL, row.candidate
        assert "the kernel raised" in row.worst.message, row.candidate  # type: ignore[union-attr]
    assert report.sandbox.startswith("sandbox: writes into scratch folders and caches only")
    assert {file.name for file in tmp_path.iterdir()} == {"kept", "reference.py", "ours.py"}


@pytest.mark.slow  # whole checks
def test_a_right_candidate_may_use_temporary_files_and_programs(tmp_path: Path) -> None:
    report = judged(tmp_path, RIGHT, sandbox="auto")
    assert [row.status for row in report.rows] == [Status.PASS, Status.PASS], report.rows


@pytest.mark.slow  # a whole check
def test_without_a_sandbox_the_report_says_so(tmp_path: Path) -> None:
    report = judged(tmp_path, HOSTILE.partition("def removes")[0], sandbox="off")
    assert report.rows[0].status is Status.PASS
    assert report.sandbox.startswith("no sandbox: it was switched off; at most ")
    assert (tmp_path / "written").exists()


def test_a_sandbox_that_must_be_and_cannot_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "sandbox_of_this_system", lambda: Sandbox(0))
    with pytest.raises(CheckError, match="sandbox=on must be possible, got no sandbox: this system has no Landlock"):
        judged(tmp_path, RIGHT, sandbox="on")
    with pytest.raises(CheckError, match="sandbox must be auto, on or off, got 'yes'"):
        judged(tmp_path, RIGHT, sandbox="yes")


@pytest.mark.slow  # a whole check
def test_no_code_of_a_task_runs_in_the_process_of_the_command(tmp_path: Path) -> None:
    for folder in ("pids", "candidates"):
        (tmp_path / folder).mkdir()
    leaves = 'open(f"{os.path.dirname(__file__)}/FOLDER/{os.getpid()}", "w").close()\n'
    reference = f"{REFERENCE}{leaves.replace('FOLDER', 'pids')}"
    judged(tmp_path, f"import os\n{leaves.replace('FOLDER', 'candidates')}def ours(x): return 2 * x", sandbox="off",
           reference=reference)  # fmt: skip
    for folder in ("pids", "candidates"):
        ran_in = {int(file.name) for file in (tmp_path / folder).iterdir()}
        assert ran_in
        assert os.getpid() not in ran_in


@pytest.mark.slow  # a whole check
def test_what_a_task_prints_does_not_reach_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    prints = "import logging, sys\nprint('loud')\nlogging.error('loud')\nprint('loud', file=sys.stderr)\n"
    report = judged(tmp_path, f"{prints}def ours(x): return 2 * x", sandbox="auto", reference=prints + REFERENCE)
    assert report.rows[0].status is Status.PASS
    assert "loud" not in "".join(capfd.readouterr())
