"""Commands that start from a process that has imported torch already.

Each test runs whole commands, some of which import torch anew: seconds each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from opwright.workers.daemon import address, client
from tests.sampled import quick

OPERATORS = f"""
    import os, pathlib, sys, time
    came_from_a_daemon = "opwright.cli.daemon_process" in sys.orig_argv
    import torch
    from jaxtyping import Float32
    from torch import Tensor
    import opwright as ow

    if not pathlib.Path("seen.txt").exists():  # workers import this later
        pathlib.Path("seen.txt").write_text(f"{{came_from_a_daemon}} {{os.environ.get('OF_A_TEST')}} {{os.getppid()}}")

    @ow.op("daemontest::double")
    def double(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
        return 2 * x

    @double.python(name="right")
    def _(x):
        return x + x

    @double.python(name="wrong")
    def _(x):
        return x + x + (x.numel() > 2)

    @double.python(name="slow")
    def _(x):
        pathlib.Path("runs").touch()
        time.sleep(100)

    @double.python(name="stops the daemon")
    def _(x):
        if "DAEMON" in os.environ:
            os.kill(int(os.environ["DAEMON"]), {int(signal.SIGSTOP)})
        return x + x
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """That of the daemon of these tests, which has a cache of its own."""
    folder = tmp_path_factory.mktemp("daemon")
    return {**os.environ, "OPWRIGHT_CACHE_DIR": str(folder), "COLUMNS": "100"}


def opwright(environment: dict[str, str], *arguments: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "opwright", *arguments],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # type: ignore[call-overload]  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code and the output."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out + err


@pytest.fixture(scope="module")
def daemon(environment: dict[str, str]) -> Iterator[int]:
    """The process of a daemon."""
    code, output = ended(opwright(environment, "daemon", "start"))
    assert code == 0, output
    try:
        yield int(output.split("process ")[1].split(".")[0])
    finally:
        ended(opwright(environment, "daemon", "stop"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "operators.py").write_text(textwrap.dedent(OPERATORS))
    return tmp_path


def check(environment: dict[str, str], folder: Path, kernel: str, *arguments: str) -> subprocess.Popen[str]:
    (folder / "seen.txt").unlink(missing_ok=True)
    return opwright(environment, "check", "operators.py", "--kernel", kernel, *arguments, cwd=folder)


def seen(folder: Path) -> list[str]:
    """What the operators' module saw when the command imported it."""
    return (folder / "seen.txt").read_text().split()


def wait_for(file: Path) -> None:
    end = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < end, "the kernel has not run"
        time.sleep(0.02)


def group_of(process: int) -> set[int]:
    """The processes of a command's process group that have not ended."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = status.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it has just ended
            continue
        if int(group) == process and state not in "ZX":
            found.add(int(status.parent.name))
    return found


def wait_until_none(group: int) -> None:
    end = time.monotonic() + 30
    while group_of(group):
        assert time.monotonic() < end, f"processes are left: {group_of(group)}"
        time.sleep(0.05)


@pytest.mark.exhaustive
@pytest.mark.slow  # checks operators twice
def test_a_check_has_the_same_findings(daemon: int, environment: dict[str, str], folder: Path) -> None:
    def findings(environment: dict[str, str], kernel: str, code: int) -> list[tuple[str, ...]]:
        """What was found, but for how often a kernel was called within a time."""
        found, output = ended(check(environment, folder, kernel, "--json", "report.json"))
        assert found == code, output
        (verdict,) = json.loads((folder / "report.json").read_text())["verdicts"]
        return [(f["check"], f["status"], f["case"]) for f in verdict["findings"]]

    for kernel, code in (("right", 0), ("wrong", 1)):
        own = {**environment, "OF_A_TEST": "another variable"}
        without = findings(own, kernel, code)
        assert seen(folder)[0] == "False"
        assert findings(environment, kernel, code) == without
        assert seen(folder)[:2] == ["True", "None"]


@pytest.mark.slow
def test_the_installed_script_starts_from_it(daemon: int, environment: dict[str, str], folder: Path) -> None:
    """Its first line has another name of the same interpreter."""
    script = Path(sys.executable).parent / "opwright"
    if not script.exists():
        pytest.skip("opwright's script is not installed")
    command = [str(script), "check", "operators.py", "--kernel", "right", "--check", "values"]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert seen(folder)[0] == "True"


def test_a_wrong_call_has_its_exit_code(daemon: int, environment: dict[str, str], folder: Path) -> None:
    code, output = ended(check(environment, folder, "right", "--jobs", "-3"))
    assert code == 2
    assert "jobs must be at least 1, got -3" in output


def test_an_interrupted_command_says_what_is_finished(daemon: int, environment: dict[str, str], folder: Path) -> None:
    command = check(environment, folder, "slow")
    wait_for(folder / "runs")
    group = os.getpgid(int(seen(folder)[2]))
    command.send_signal(signal.SIGINT)
    code, output = ended(command)
    assert code == 130, output
    assert "0 of 1 kernels were checked" in output
    wait_until_none(group)


def test_a_command_ends_with_who_asked(daemon: int, environment: dict[str, str], folder: Path) -> None:
    command = check(environment, folder, "slow")
    wait_for(folder / "runs")
    group = os.getpgid(int(seen(folder)[2]))
    command.kill()
    command.communicate()
    wait_until_none(group)


def test_a_terminals_stop_reaches_all(daemon: int, environment: dict[str, str], folder: Path) -> None:
    def states() -> set[str]:
        return {Path(f"/proc/{p}/stat").read_text().rpartition(")")[2].split()[0] for p in (*group, command.pid)}

    command = check(environment, folder, "slow")
    wait_for(folder / "runs")
    group = group_of(os.getpgid(int(seen(folder)[2])))
    assert len(group) == 3, "the command, what watches it, and its fork server"
    for number, expected in ((signal.SIGTSTP, {"T"}), (signal.SIGCONT, {"S"})):
        command.send_signal(number)
        end = time.monotonic() + 30
        while states() != expected:
            assert time.monotonic() < end, states()
            time.sleep(0.02)
    command.send_signal(signal.SIGINT)
    assert ended(command)[0] == 130


@pytest.mark.slow
def test_a_kernel_that_stops_the_daemon(daemon: int, environment: dict[str, str], folder: Path) -> None:
    source = (folder / "operators.py").read_text()
    (folder / "operators.py").write_text(
        source.replace('os.environ["DAEMON"]', repr(daemon)).replace('"DAEMON" in', '"HOME" in')
    )
    code, output = ended(check(environment, folder, "stops the daemon"))
    assert code == 0, output
    assert seen(folder)[0] == "True"


def test_status_names_what_differs(daemon: int, environment: dict[str, str]) -> None:
    assert "for this environment" in ended(opwright(environment, "daemon", "status"))[1]
    _, output = ended(opwright({**environment, "OF_A_TEST": "1"}, "daemon", "status"))
    assert "differ: $OF_A_TEST" in output


def test_a_second_start_says_that_it_runs(daemon: int, environment: dict[str, str]) -> None:
    code, output = ended(opwright(environment, "daemon", "start"))
    assert (code, output) == (0, f"already running for this environment: process {daemon}\n")


@pytest.mark.slow  # waits for a check
def test_a_command_that_runs_outlives_a_stop(tmp_path: Path, environment: dict[str, str], folder: Path) -> None:
    environment = {**environment, "OF_A_TEST": "to be stopped"}
    assert ended(opwright(environment, "daemon", "start"))[0] == 0
    command = check(environment, folder, "slow", "--timeout", "3")
    wait_for(folder / "runs")
    found = address.parts(environment)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPWRIGHT_CACHE_DIR", environment["OPWRIGHT_CACHE_DIR"])
        assert client.stop(address.folder_of(found))
        assert not client.about(address.folder_of(found))
    code, output = ended(command)
    assert code == 4, output  # a step that did not end in time
    assert seen(folder)[:2] == ["True", "to"]


@pytest.mark.slow  # three starts of a daemon
def test_a_daemon_that_was_killed(environment: dict[str, str], folder: Path) -> None:
    environment = {**environment, "OF_A_TEST": "killed"}
    code, output = ended(opwright(environment, "daemon", "start"))
    assert code == 0, output
    command = check(environment, folder, "slow")
    wait_for(folder / "runs")
    group = os.getpgid(int(seen(folder)[2]))
    os.kill(int(output.split("process ")[1].split(".")[0]), signal.SIGKILL)
    code, output = ended(command)
    assert code == 1
    assert "ended by SIGKILL before the command did" in output
    wait_until_none(group)
    code, output = ended(check(environment, folder, "right"))  # as if there had never been one
    assert code == 0, output
    assert seen(folder)[0] == "False"


@pytest.mark.slow  # waits until it ends
def test_it_ends_when_nothing_is_asked(environment: dict[str, str]) -> None:
    environment = {**environment, "OF_A_TEST": "idle"}
    code, output = ended(opwright(environment, "daemon", "start", "--minutes", "0.01"))
    assert code == 0, output
    pid = int(output.split("process ")[1].split(".")[0])
    wait_until_none(os.getpgid(pid) if Path(f"/proc/{pid}").exists() else pid)
    code, output = ended(opwright(environment, "daemon", "status"))
    assert f"process {pid}" not in output


def test_an_import_that_fails_is_shown(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError('no rich here')")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; 'daemon_process' in str(sys.orig_argv) and sys.path.insert(0, " + repr(str(tmp_path)) + ")"
    )
    code, output = ended(opwright({**environment, "PYTHONPATH": f"{tmp_path}"}, "daemon", "start"))
    assert code != 0
    assert "no rich here" in output


@pytest.mark.parametrize("minutes", quick(["0", "-1", "nan", "1e9"], 0, 2))
def test_minutes_are_refused(environment: dict[str, str], minutes: str) -> None:
    code, output = ended(opwright(environment, "daemon", "start", "--minutes", minutes))
    assert code == 2
    assert "--minutes" in output


def test_the_interpreter_is_refused(environment: dict[str, str]) -> None:
    code, output = ended(opwright({**environment, "TRITON_INTERPRET": "1"}, "daemon", "start"))
    assert code == 2
    assert "--interpreter" in output


# -- which daemon -----------------------------------------------------------------------------------------------------


def test_the_place_depends_on_what_a_new_process_would_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def now(environment: dict[str, str] = {}) -> Path:  # noqa: B006
        return address.folder_of(address.parts({"A": "1", "TERM": "xterm", **environment}))

    first = now()
    assert now({"TERM": "dumb", "PWD": "/", "TMUX_PANE": "3"}) == first
    assert now({"A": "2"}) != first
    assert now({"LD_PRELOAD": "x"}) != first
    for name in ("_stamps_of_sources", "_stamps_of_packages", "_limits"):
        with monkeypatch.context() as changed:
            changed.setattr(address, name, lambda: [("changed", 1)])
            assert now() != first
    assert now() == first


def test_an_interpreter_is_one_by_each_of_its_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = address.folder_of(address.parts({}))
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert address.folder_of(address.parts({})) == first
    monkeypatch.setattr(sys, "prefix", str(tmp_path))  # of another virtual environment
    assert address.folder_of(address.parts({})) != first


def test_another_users_daemon_is_not_asked(tmp_path: Path) -> None:
    address.make(tmp_path / "root" / "one", {})
    listener = address.listen(tmp_path / "root" / "one")
    connection = address.connect(tmp_path / "root" / "one")
    assert connection is not None
    assert address.process_of(connection) == os.getpid()
    connection.close()
    (tmp_path / "root").chmod(0o777)
    assert address.connect(tmp_path / "root" / "one") is None
    listener.close()


def test_what_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PATIENCE", 0.1)
    address.make(tmp_path / "root" / "one", {})
    with address.listen(tmp_path / "root" / "one"):
        assert client.about(tmp_path / "root" / "one") == {}
        assert not client.stop(tmp_path / "root" / "one")


def test_a_message_that_is_too_long_is_not_sent(tmp_path: Path) -> None:
    address.make(tmp_path / "root" / "one", {})
    with address.listen(tmp_path / "root" / "one"):
        connection = address.connect(tmp_path / "root" / "one")
        assert connection is not None
        with connection:
            assert client._ask(connection, {"long": "x" * address.MESSAGE_BYTES}, []) == {}
