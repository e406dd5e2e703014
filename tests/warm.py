"""Python processes for tests that need one of their own, forked from a process that has imported torch already.

A new Python takes three to five seconds to import torch and what torch.compile needs; a fork of a process that has
done so takes milliseconds, and is as fresh: it has imported nothing of opwright, run nothing and touched no device.
The process that opwright itself forks workers from (``opwright.workers``) imports the same, so such
a fork gets it from here too. What asks what is imported, or how opwright starts, needs ``fresh=True``: a new Python.

    test process ── asks ──> server ── forks ──> keeper ── forks ──> the command
                                                   └────── forks ──> what opwright would start as its fork server

The server is one per test process, and one more for Triton's interpreter, which is chosen when Triton is imported.
A keeper is one per command. Neither runs anything, so what is forked from them is as they are.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import REPOSITORY

__all__ = ["Running", "run_module", "run_script", "start_module"]

_PRELOAD = (
    "torch", "torch._dynamo", "torch._functorch.aot_autograd", "torch.testing._internal.optests",
    "torch._inductor.pattern_matcher", "torch._dynamo.repro.after_dynamo", "torch._dynamo.backends.inductor",
    "torch.export._trace", "jaxtyping", "numpy",
)  # fmt: skip
_FORK_SERVER = ["-m", "opwright.workers"]
_MESSAGE_BYTES = 1 << 17


# -- in the test process -------------------------------------------------------------------------------------------


def run_script(
    file: Path, *args: object, env: dict[str, str] | None = None, cwd: Path | None = None, timeout: float = 200,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a file as ``python FILE ARGS``; ``env`` is added to this process's environment."""
    return _run([str(file), *map(str, args)], env, cwd, timeout, fresh)


def run_module(
    module: str, *args: object, env: dict[str, str] | None = None, cwd: Path | None = None, timeout: float = 200,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a module as ``python -m MODULE ARGS``."""
    return _run(["-m", module, *map(str, args)], env, cwd, timeout, fresh)


def start_module(module: str, *args: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> Running:
    """Start ``python -m MODULE ARGS`` and come back at once."""
    return Running(["-m", module, *map(str, args)], {**os.environ, **(env or {})}, cwd)


def _run(
    command: list[str], env: dict[str, str] | None, cwd: Path | None, timeout: float, fresh: bool
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(env or {})}
    if fresh:
        return subprocess.run(
            [sys.executable, *command], env=environment, cwd=cwd, capture_output=True, text=True, timeout=timeout,
            check=False,
        )  # fmt: skip
    return Running(command, environment, cwd).wait(timeout)


class Running:
    """A command that runs in a fork."""

    def __init__(self, command: list[str], environment: dict[str, str], cwd: Path | None) -> None:
        self._command = command
        self._folder = tempfile.TemporaryDirectory()
        self._out, self._err = Path(self._folder.name, "out"), Path(self._folder.name, "err")
        self._keeper, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._out.open("wb") as out, self._err.open("wb") as err:
            request = {"command": command, "environment": environment, "cwd": str(cwd or Path.cwd())}
            fds = [theirs.fileno(), out.fileno(), err.fileno()]
            server = _server(interpret=_interprets(environment))
            socket.send_fds(server, [json.dumps(request).encode()], fds)
        self.pid = int(self._keeper.recv(64) or b"0")
        assert self.pid, "the process that commands are forked from has ended"

    def has_ended(self) -> bool:
        return bool(select.select([self._keeper], [], [], 0)[0])

    def output(self) -> str:
        """Its output until now."""
        return self._out.read_text(errors="replace") + self._err.read_text(errors="replace")

    def wait(self, timeout: float) -> subprocess.CompletedProcess[str]:
        """Its exit code and output; ends it if it takes longer."""
        ended, _, _ = select.select([self._keeper], [], [], timeout)
        code = self._keeper.recv(64) if ended else b""
        self._keeper.close()  # the keeper ends what has not ended
        out, err = (file.read_text(errors="replace") for file in (self._out, self._err))
        self._folder.cleanup()
        if not ended:
            raise subprocess.TimeoutExpired(self._command, timeout, out, err)
        return subprocess.CompletedProcess(self._command, int(code), out, err)


def _interprets(environment: dict[str, str]) -> bool:
    return environment.get("TRITON_INTERPRET") == "1"


_servers: dict[bool, socket.socket] = {}


def _server(*, interpret: bool) -> socket.socket:
    """The connection to a server, which is started when it is first needed."""
    if interpret not in _servers:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, "TRITON_INTERPRET": "1" if interpret else "0"}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", f"from tests.warm import _serve; _serve({theirs.fileno()})"],
                cwd=REPOSITORY, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
            )  # fmt: skip
        _servers[interpret] = ours
        atexit.register(_end, ours, process)
    return _servers[interpret]


def _end(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.wait(30)


# -- in the server and its keepers -----------------------------------------------------------------------------------


def _serve(descriptor: int) -> None:
    """Fork a keeper for each request until the other side closes."""
    sys.path.remove("")  # the folder of this process, which is none of theirs
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the test process, which ends this one
    # While imported, some of them ask whether there is a GPU, and a fork of a process that has asked the driver can use
    # none.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    for name in _PRELOAD:
        importlib.import_module(name)
    del os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]
    requests = socket.socket(fileno=descriptor)
    while True:
        data, fds, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 3)
        if not data:
            return
        if os.fork() == 0:
            try:
                requests.close()
                _keep(json.loads(data), *fds)
            finally:
                os._exit(0)
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(ChildProcessError):  # those that have ended meanwhile
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _keep(request: dict[str, Any], answers: int, out: int, err: int) -> None:
    """Fork a command, wait for it, and fork the processes that it requests meanwhile."""
    asked, asks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        asked.close()
        os.close(answers)
        _never_back(_become, request, out, err, asks)
    asks.close()
    os.close(out)
    os.close(err)
    with socket.socket(fileno=answers) as caller, contextlib.suppress(BrokenPipeError):
        caller.send(str(pid).encode())
        ended = os.pidfd_open(pid)
        watched: list[Any] = [ended, caller, asked]
        while ended not in (ready := select.select(watched, [], [])[0]):
            if caller in ready:  # no test waits any more
                os.kill(pid, signal.SIGKILL)
                watched.remove(caller)
            elif not _fork_for(asked):
                watched.remove(asked)
        caller.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _fork_for(asked: socket.socket) -> bool:
    """Fork a process that the command would have started as a new Python; False where it will ask no more."""
    data, fds, _, _ = socket.recv_fds(asked, _MESSAGE_BYTES, 2)
    if not data:
        return False
    pid = os.fork()
    if pid == 0:
        asked.close()
        passed, err = fds
        request = json.loads(data)
        request["command"].append(str(passed))
        _never_back(_become, request, os.open(os.devnull, os.O_WRONLY), err)
    for fd in fds:
        os.close(fd)
    asked.send(str(pid).encode())
    return True


def _never_back(do: Any, *args: Any, **options: Any) -> None:
    """Run something in a fork and leave as Python would."""
    code = 1
    try:
        do(*args, **options)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


# -- in the command ------------------------------------------------------------------------------------------------


def _become(request: dict[str, Any], out: int, err: int, asks: socket.socket | None = None) -> None:
    """Turn a fork into what ``python COMMAND`` would be."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, err)):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    environment = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["cwd"])
    sys.path[:0] = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
    if asks is not None:
        _ForkServer.asks, _ForkServer.interprets = asks, _interprets(environment)
        subprocess.Popen = _Popen  # type: ignore[misc]
    _execute(request["command"])


def _execute(command: Sequence[str]) -> None:
    if command[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = list(command[1:])
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
        sys.argv = list(command)
        runpy.run_path(command[0], run_name="__main__")


class _Popen(subprocess.Popen):  # type: ignore[type-arg]
    """Starts processes, except opwright's fork server, which the keeper forks."""

    def __new__(cls, command: Any, *args: Any, **options: Any) -> Any:
        if isinstance(command, list) and command[1:3] == _FORK_SERVER:
            environment = options["env"]
            if _interprets(environment) == _ForkServer.interprets:  # Triton chose when it was imported
                (passed,) = options["pass_fds"]
                return _ForkServer({"command": _FORK_SERVER, "environment": environment, "cwd": os.getcwd()}, passed)
        return super().__new__(cls)


class _ForkServer:
    """The part of ``subprocess.Popen`` that opwright needs for its fork server."""

    asks: socket.socket
    interprets: bool

    def __init__(self, request: dict[str, Any], passed: int) -> None:
        printed, saying = os.pipe()
        socket.send_fds(self.asks, [json.dumps(request).encode()], [passed, saying])
        os.close(saying)
        self.stderr = os.fdopen(printed, "rb")
        self.pid = int(self.asks.recv(64))
        self._ended = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        """0 once it has ended: only its parent knows its exit code."""
        return 0 if select.select([self._ended], [], [], timeout)[0] else None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._ended, signal.SIGKILL)
