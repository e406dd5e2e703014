"""Processes that workers are forked from, started before they are needed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opwright.workers import spawn
from opwright.workers.spawn import end_prestarted, prefork, prestart, started


@contextlib.contextmanager
def started_early() -> Iterator[spawn.Started]:
    """No fixture, as pytest sets a variable between it and its test."""
    end_prestarted()  # a command that ran in this process may have left one
    prestart()
    (one,) = spawn._prestarted
    try:
        yield one
    finally:
        end_prestarted()
        end(one)


def end(one: spawn.Started) -> None:
    one.connection.close()
    one.process.kill()
    one.process.wait(20)


def test_what_was_started_early_is_taken_once() -> None:
    with started_early() as ahead:
        assert started(interpret=False) is ahead
        another = started(interpret=False)
        assert another is not ahead
        end(another)


def test_one_is_enough() -> None:
    with started_early() as ahead:
        prestart()
        assert spawn._prestarted == [ahead]


def test_variables_that_were_set_in_the_meantime_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with started_early() as ahead:
        monkeypatch.setenv("SET_BY_A_MODULE", "1")
        another = started(interpret=False)
        assert another.environment["SET_BY_A_MODULE"] == "1"
        assert ahead.process.poll() is not None
        end(another)


@pytest.mark.slow  # imports torch anew, twice
def test_variables_that_torch_sets_are_those_of_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with started_early() as ahead:
        code = "import os, torch._dynamo; print(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", shown.stdout.strip())
        assert started(interpret=False) is ahead


def test_another_folder_of_torchs_cache_is_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with started_early() as ahead:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
        another = started(interpret=False)
        assert another is not ahead
        assert another.environment["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
        end(another)


def test_the_interpreter_has_one_of_its_own() -> None:
    with started_early() as ahead:
        another = started(interpret=True)
        assert another.environment["TRITON_INTERPRET"] == "1"
        assert spawn._prestarted == [ahead]
        end(another)


def test_one_that_has_ended_is_not_taken() -> None:
    with started_early() as ahead:
        ahead.process.kill()
        ahead.process.wait(20)
        another = started(interpret=False)
        assert another is not ahead
        end(another)


def test_it_is_ended_with_the_process_and_needs_no_torch() -> None:
    code = """
import sys
from opwright.workers import spawn
spawn.prestart()
assert "torch" not in sys.modules
print(spawn._prestarted[0].process.pid)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert subprocess.run(["kill", "-0", run.stdout.strip()], capture_output=True, check=False).returncode != 0


_FORKS = """
import json, os, signal
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: None)
read, write = os.pipe()
before = dict(os.environ)
from opwright.workers import spawn
spawn.prefork()
from opwright.workers.pool import shared_server
from opwright.workers.roles import Role
process = Path(f"/proc/{spawn._prestarted[0].process.pid}")
with shared_server(interpret=False) as server:
    code = server.wait(server.fork(Role.WARM, [], os.open(os.devnull, os.O_WRONLY)), timeout=60)
status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
print(json.dumps({
    "parent": int(status["PPid"]) == os.getpid(),
    "catches SIGTERM": bool(int(status["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1),
    "files": [os.readlink(one) for one in (process / "fd").iterdir()],
    "of the command": os.readlink(f"/proc/self/fd/{write}"),
    "code": code,
    "variables": {n: v for n, v in os.environ.items() if before.get(n) != v},
    "threads": __import__("torch").get_num_threads(),
}))
"""


@pytest.mark.slow  # imports torch anew
def test_a_fork_of_a_command_has_no_file_or_signal_handler_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shown = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(shown.stdout)
    assert found["parent"]
    assert not found["catches SIGTERM"]
    assert found["of the command"] not in found["files"]
    assert found["code"] == 0  # it forks workers
    assert found["variables"].keys() <= {"TORCHINDUCTOR_CACHE_DIR"}
    assert found["threads"] == 1


def test_a_process_that_has_imported_torch_is_not_forked() -> None:
    end_prestarted()
    prefork()
    (one,) = spawn._prestarted
    end_prestarted()
    assert isinstance(one.process, subprocess.Popen)
    end(one)
