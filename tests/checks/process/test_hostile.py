"""Kernels that attack the check: each is a finding about that kernel, in time, and others keep their verdicts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jaxtyping import Float, Float32
from torch import Tensor

import opwright as ow
from opwright.checks.process import run_job
from opwright.errors import CheckError
from opwright.report import html
from opwright.report.files import write_text
from opwright.results import Status
from opwright.workers.pool import end_workers
from opwright.workers.relatives import is_ending


@ow.op("hostile::twice")
def twice(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return 2 * x


def _sockets():
    """The sockets of this process, one of which is the check's."""
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=os.dup(fd))
            if found.family == socket.AF_UNIX:
                yield found


def _send(*lines: bytes) -> None:
    for connection in _sockets():
        with contextlib.suppress(OSError):
            connection.sendall(b"".join(lines))


def _message(kind: str, **content: object) -> bytes:
    return json.dumps({"kind": kind, "content": content}).encode() + b"\n"


@twice.python(name="sends garbage")
def _(x):
    _send(b"\xff\xfe{]\n")
    return 3 * x


@twice.python(name="sends a message of another kind")
def _(x):
    _send(_message("Verdict", status="pass"))
    return 3 * x


@twice.python(name="sends a message without an end")
def _(x):
    _send(b"x" * (1 << 23))
    return 3 * x


@twice.python(name="sends twenty thousand findings")
def _(x):
    one = _message("Found", finding={"check": "values", "status": "pass", "message": "x" * 4000})
    _send(*[one] * 20_000)
    return 3 * x


@twice.python(name="ends the process")
def _(x):
    os._exit(0)


@twice.python(name="prints without an end")
def _(x):
    os.write(1, b"spam " * 100_000)
    return 3 * x


@twice.python(name="closes every file")
def _(x):
    os.closerange(0, 256)
    return 3 * x


HOSTILE = list(twice.kernels)


@twice.python(name="right")
def _(x):
    return 2 * x


@pytest.fixture(scope="module")
def verdicts():
    return {v.kernel: v for v in ow.check(twice, checks=["values"], device="cpu").verdicts}


SLEEPS_WHEN_LOADED = """
#include <torch/csrc/stable/tensor.h>
#include <unistd.h>
static int never = (sleep(1000), 0);
using torch::stable::Tensor;
Tensor twice(const Tensor& x) { return x; }
"""


@pytest.mark.slow  # waits for a time limit
def test_a_library_that_does_not_load_is_a_hang_within_the_limit_of_a_step(tmp_path):
    @ow.op("hostile::sleeps")
    def sleeps(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return 2 * x

    (tmp_path / "sleeps.cpp").write_text(SLEEPS_WHEN_LOADED)
    sleeps.cpp(tmp_path / "sleeps.cpp", entry="twice", name="sleeps when it is loaded")
    (verdict,) = ow.check(sleeps, device="cpu", timeout=4, kernels=["sleeps when it is loaded"]).verdicts
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.findings[0].check == "load kernel"
    assert "did not return within 4 s" in verdict.findings[0].message
    assert verdict.step_seconds["load kernel"] < 10 * 4  # as long as a build may take


@pytest.mark.parametrize("kernel", HOSTILE)
def test_it_fails(verdicts, kernel):
    assert verdicts[kernel].status is Status.FAIL, verdicts[kernel].findings


def test_the_others_keep_their_verdicts(verdicts):
    assert verdicts["right"].status is Status.PASS


def test_an_end_before_the_last_check_is_no_pass():
    @ow.op("hostile::done")
    def done(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x

    @done.python(name="says that it is done")
    def _(x):
        _send(_message("Found", finding={"check": "values", "status": "pass"}), _message("Done"))
        os._exit(0)

    (verdict,) = ow.check(done, device="cpu").verdicts
    assert verdict.status is Status.FAIL
    assert "in place of a check's messages" in verdict.findings[-1].message


@pytest.mark.slow
def test_a_stopped_worker_is_ended():
    @ow.op("hostile::stopped")
    def stopped(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x

    @stopped.python(name="stops")
    def _(x):
        os.kill(os.getpid(), signal.SIGSTOP)

    (verdict,) = ow.check(stopped, checks=["values"], device="cpu", timeout=2).verdicts
    assert verdict.status is Status.INCONCLUSIVE
    assert "did not return within 2 s" in verdict.findings[0].message


# What a kernel does to the processes that check it.
@ow.op("hostile::disturbed")
def disturbed(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return 2 * x


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@disturbed.python(name="stops the server")
def _(x):
    os.kill(os.getppid(), signal.SIGSTOP)
    return 2 * x


@disturbed.python(name="stops the process that checks")
def _(x):
    os.kill(_parent_of(os.getppid()), signal.SIGSTOP)
    return 2 * x


@disturbed.python(name="ends the server")
def _(x):
    os.kill(os.getppid(), signal.SIGKILL)
    return 2 * x


@disturbed.python(name="right")
def _(x):
    time.sleep(0.1)  # so that the others run meanwhile
    return 2 * x


# Each runs again when nothing else does, with a server of its own; a process that is stopped goes on after a second.
@pytest.mark.slow
def test_who_stops_or_ends_processes_of_the_check_is_found_and_no_other_is_accused(tmp_path):
    record = tmp_path / "record.json"
    options = ["--check", "values", "--device", "cpu", "--level", "smoke", "--jobs", "3", "--json", str(record)]
    command = [sys.executable, "-m", "opwright", "check", f"{__name__}:disturbed", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    verdicts = json.loads(record.read_text())["verdicts"]
    found = {v["kernel"]: [v["status"], *(f["message"] for f in v["findings"])] for v in verdicts}
    assert found["right"][0] == "pass", done.stderr
    for name in ("stops the server", "stops the process that checks"):
        assert found[name][0] == "fail"
        assert found[name][-1] == "the kernel stopped a process that checks it"
    assert found["ends the server"][0] == "fail"
    assert found["ends the server"][-1] == "the kernel ended the process that its own was forked from"


_TESTS = "TESTS_OF_A_HOSTILE_REFERENCE"


@ow.op("hostile::reference")
def of_a_hostile_reference(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    # Not when it is defined, and not in the process that runs the tests.
    if type(x) is Tensor and not x.is_meta and os.getppid() != int(os.environ.get(_TESTS, os.getppid())):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(10)
    return 2 * x


@of_a_hostile_reference.python(name="right")
def _(x):
    return 2 * x


@pytest.mark.slow  # starts a server for it alone
def test_a_kernel_is_not_blamed_for_a_reference_that_ends_a_process(monkeypatch):
    monkeypatch.setenv(_TESTS, str(os.getppid()))
    end_workers()  # the next server has this variable
    try:
        report = ow.check(of_a_hostile_reference, checks=["values"], device="cpu", level="smoke")
    finally:
        end_workers()
    (verdict,) = report.verdicts
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.findings[-1].message == "the reference ended the process that its own was forked from"


def test_a_process_that_was_killed_is_seen_to_end_at_once():
    for _ in range(20):
        source = "import time; memory = bytearray(1 << 26); print(flush=True); time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        assert not is_ending(process.pid)
        process.kill()
        assert is_ending(process.pid)
        process.communicate()


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("out of memory")


def test_texts_of_exceptions_reach_terminals_and_files_as_text(tmp_path):
    @ow.op("hostile::texts")
    def texts(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x

    @texts.python(name="half a pair")
    def _(x):
        raise ValueError("a\udcff b\x1b[31m c\u202e d\r é\u00a0漢")

    @texts.python(name="no text")
    def _(x):
        raise _Unprintable

    report = ow.check(texts, checks=["values"], device="cpu")
    half, none = report.verdicts
    assert half.status is none.status is Status.FAIL
    assert "ValueError: a\\udcff b\\x1b[31m c\\u202e d\\r é\u00a0漢" in half.failures[0].message
    assert "its __str__ raises RuntimeError" in none.failures[0].message
    page = tmp_path / "page.html"
    write_text(html.render([report.to_json()]), page)
    assert "é\u00a0漢" in page.read_text(encoding="utf-8")
    write_text(f"a path {os.fsdecode(bytes([255]))}", page)
    assert page.read_text(encoding="utf-8") == "a path \\udcff"


@pytest.mark.slow
def test_steps_without_an_end_are_a_hang(monkeypatch):
    @ow.op("hostile::endless")
    def endless(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x

    @endless.python(name="always at another step")
    def _(x):
        step = json.dumps({"message": {"kind": "Doing", "content": {"check": "memory"}}}).encode()
        while True:
            time.sleep(0.1)
            _send(struct.pack("<QQ", len(step), 0) + step)

    monkeypatch.setattr(run_job, "_STEPS", 3)
    (verdict,) = ow.check(endless, checks=["memory"], device="cpu", timeout=1).verdicts
    assert verdict.status is Status.INCONCLUSIVE
    assert "did not return" in verdict.findings[0].message


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": float("nan")},
        {"timeout": 0.0},
        {"timeout": -1.0},
        {"timeout": 3e5},
        {"timeout": 1e300},
        {"jobs": -3},
    ],
)
def test_numbers_that_mean_nothing_are_refused(options):
    with pytest.raises(CheckError, match=r"(timeout|jobs) must be .*, got"):
        ow.check(twice, **options)


FILE = """
from jaxtyping import Float
from torch import Tensor
import opwright as ow
{before}
@ow.op("hostile_file::twice")
def twice(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return 2 * x

@twice.python(name="first")
def _(x):
    return {value} * x

@twice.python(name="second")
def _(x):
    {second}
    return 2 * x
"""


def _command(file: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "opwright", "check", str(file), "--check", "values", "--device", "cpu", *options]


def _run(tmp_path, *, before="", value=2, second="pass"):
    file = tmp_path / "hostile_file.py"
    file.write_text(FILE.format(before=before, value=value, second=second))
    return subprocess.run(_command(file), capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_a_file_that_ends_the_process_at_its_import_does_not_pass(tmp_path):
    ended = _run(tmp_path, before="import os; os._exit(0)")
    assert ended.returncode == 1
    assert "ended with exit code 0 before the command did, by a file that it imported" in ended.stderr


def test_where_ray_may_have_ended_the_process_the_message_says_how_to_go_on():
    code = "import os, opwright.cli as cli; cli._run = lambda: os._exit(1); cli.run()"
    ended = subprocess.run([sys.executable, "-c", code, "check", "--ray=local"], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "ended with exit code 1 before the command did, by Ray, whose processes" in ended.stderr
    assert "with --resume FILE, it goes on from what is finished" in ended.stderr


@pytest.mark.slow  # two commands, each of which imports torch twice
def test_a_file_that_ends_the_process_at_its_end_does_not_pass(tmp_path):
    before = "import atexit, os; atexit.register(os._exit, 0)"
    assert _run(tmp_path, before=before, value=3).returncode == 1
    assert _run(tmp_path, before=before, value=2).returncode == 0


@pytest.mark.slow  # a command with several whole checks
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_command_keeps_what_is_finished(tmp_path, sent):
    record, page = tmp_path / "record.json", tmp_path / "page.html"
    with _hanging(tmp_path, "--json", str(record), "--html", str(page)) as process:
        if sent == signal.SIGINT:
            _interrupt_all(process.pid)
            _interrupt_all(process.pid)  # whoever presses it twice means it once
        else:
            process.send_signal(sent)
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    partial = "interrupted: 1 of 2 kernels were checked"
    assert partial in shown
    report = json.loads(record.read_text())
    assert report["partial"] == partial
    assert [v["status"] for v in report["verdicts"]] == ["fail"]
    assert partial in page.read_text()


@pytest.mark.slow  # a command with several whole checks
def test_a_command_without_a_terminal_still_writes_its_files(tmp_path):
    record = tmp_path / "record.json"
    with _hanging(tmp_path, "--json", str(record)) as process:
        process.stdout.close()
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        process.wait(60)
    assert json.loads(record.read_text())["partial"] == "interrupted: 1 of 2 kernels were checked"


@pytest.mark.slow  # a command with several whole checks
def test_a_second_ctrl_c_ends_a_command_that_does_not_end(tmp_path):
    before = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"  # the file that is checked
    with _hanging(tmp_path, before=before) as process:
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(1.5)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "ended before it had written what is finished" in said


@contextlib.contextmanager
def _hanging(tmp_path: Path, *options: str, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """A command that has finished one of two verdicts, and waits for the other."""
    file = tmp_path / "hostile_file.py"
    file.write_text(FILE.format(before=before, value=3, second="import time; time.sleep(1000)"))
    command = _command(file, "--jobs", "1", *options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None  # opened as a pipe
        for line in process.stderr:  # one for each verdict
            if "FAIL" in line:
                break
        time.sleep(0.2)
        yield process


def _interrupt_all(pid: int) -> None:
    """As a terminal does: the process and its child."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in (pid, *map(int, children)):
        os.kill(each, signal.SIGINT)
