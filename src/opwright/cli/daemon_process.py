"""The daemon's process: it imports what every command imports, and forks commands and their fork servers.

``python -m opwright.cli.daemon_process FOLDER`` listens in a folder until nothing was asked for some time. A request is
one message, with the files that go with it:

    run      a command of opwright, with its streams   → {"pid": …}, {"exit": …}
    serve    a fork server for a command's workers     → {"pid": …}
    tell     what there is to know                     → {"pid": …, "parts": …, …}
    stop     end, as soon as what was forked has       → {"pid": …}

If the side that asked for a command goes away, the command gets SIGHUP, as from a terminal that is closed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

import numpy as np

from opwright import cli
from opwright.checks.process import forkserver
from opwright.daemon import client, place
from opwright.internals.compiler import set_by_imports
from opwright.internals.cuda import gpus_counted_by_nvml
from opwright.internals.exits import forget_exit_functions, run_exit_functions

__all__ = ["main"]

# What commands import, besides what their workers do.
_IMPORTS = (
    "opwright.checks.run", "opwright.report.files", "opwright.report.html", "opwright.report.terminal.check",
    "opwright.report.terminal.progress", "jaxtyping", "triton",
)  # fmt: skip
_SECOND = 1.0


class _Daemon:
    """What listens, what was forked, and for whom."""

    def __init__(self, folder: Path, listener: socket.socket, about: dict[str, Any]) -> None:
        self._folder, self._about = folder, about
        self._listeners = {listener}  # none, once it is ending
        self._woken, self._wake = os.pipe()
        self._connections: set[socket.socket] = set()
        self._commands: dict[int, socket.socket] = {}
        self._others: set[int] = set()
        self._last_request = time.monotonic()

    def run(self) -> None:
        """Answer until it is told to end, or nothing was asked for some time."""
        for descriptor in (self._woken, self._wake):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        while self._listeners or self._commands or self._others:
            watched: list[Any] = [self._woken, *self._listeners, *self._connections]
            ready, _, _ = select.select(watched, [], [], _SECOND)
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            self._report_ended()
            for listener in self._listeners.intersection(ready):
                self._connections.add(listener.accept()[0])
            for connection in self._connections.intersection(ready):
                self._receive(connection)
            if not self._commands and time.monotonic() - self._last_request > 60 * self._about["minutes"]:
                self._end()

    def _end(self) -> None:
        """Take no more commands; what was forked goes on."""
        if self._listeners:
            place.leave(self._folder)
        while self._listeners:
            self._listeners.pop().close()

    def _report_ended(self) -> None:
        with contextlib.suppress(ChildProcessError):  # there are none
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                self._others.discard(pid)
                self._last_request = time.monotonic()
                if (connection := self._commands.pop(pid, None)) is not None:
                    _answer(connection, {"exit": os.waitstatus_to_exitcode(status)})
                    self._forget(connection)

    def _receive(self, connection: socket.socket) -> None:
        """Take a request, or notice that who asked has gone."""
        try:
            data, files, _, _ = socket.recv_fds(connection, place.MESSAGE_BYTES, 3)
        except OSError:
            data, files = b"", []
        if data:
            self._serve(connection, json.loads(data), files)
            for file in files:
                os.close(file)
            return
        for pid in [pid for pid, asked in self._commands.items() if asked is connection]:
            del self._commands[pid]
            self._others.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGHUP)
        self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        self._connections.discard(connection)
        connection.close()

    def _serve(self, connection: socket.socket, request: dict[str, Any], files: Sequence[int]) -> None:
        self._last_request = time.monotonic()
        match request["do"]:
            case "run":
                pid = self._fork(lambda: _become_command(request, files, self._folder))
                self._commands[pid] = connection
                _answer(connection, {"pid": pid})
            case "serve":
                pid = self._fork(lambda: _become_fork_server(request, files))
                self._others.add(pid)
                _answer(connection, {"pid": pid})
            case "tell":
                _answer(connection, {"pid": os.getpid(), "running": len(self._commands), **self._about})
            case "stop":
                self._end()
                _answer(connection, {"pid": os.getpid()})

    def _fork(self, become: Callable[[], None]) -> int:
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for each in (*self._listeners, *self._connections):
                each.close()
            os.close(self._woken)
            os.close(self._wake)
            _never_back(become)
        return pid


def _answer(connection: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # who asked has gone
        connection.send(json.dumps(message).encode())


# -- in a fork --------------------------------------------------------------------------------------------------------


def _never_back(become: Callable[[], None]) -> NoReturn:
    """Become something else, and leave as Python would, without a last look at each object of torch."""
    code = 1
    try:
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        forget_exit_functions()  # the daemon's own
        np.random.seed()  # Python's and torch's generators see to that themselves
        become()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            run_exit_functions()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _become_command(request: dict[str, Any], files: Sequence[int], folder: Path) -> None:
    """Run ``opwright`` as the process that asked would."""
    os.setpgid(0, 0)  # signals of a terminal reach who asked, and are passed on
    _take_streams(files)
    os.umask(request["umask"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:], sys.path[:] = request["arguments"], request["path"]
    importlib.invalidate_caches()
    client.origin = client.Origin(folder, request["environment"])
    cli.run()


def _become_fork_server(request: dict[str, Any], files: Sequence[int]) -> None:
    with contextlib.suppress(OSError):  # the command has ended
        os.setpgid(0, os.getpgid(request["parent"]))  # a terminal's Ctrl-Z stops both
    requests, stderr = files
    nothing = os.open(os.devnull, os.O_RDWR)
    _take_streams([nothing, nothing, stderr])
    imported = set_by_imports()
    os.environ.clear()
    os.environ.update({**imported, **request["environment"]})
    warnings.simplefilter("ignore")
    forkserver.serve(socket.socket(fileno=requests), request["parent"])


def _take_streams(files: Sequence[int]) -> None:
    """Make these files the standard streams, as a new process has them."""
    for stream, file in enumerate(files):
        os.dup2(file, stream)
    for file in set(files):
        os.close(file)
    sys.stdin = open(0, encoding=sys.stdin.encoding, closefd=False)  # noqa: SIM115
    sys.stdout = _text_stream(1, sys.stdout, line_buffering=os.isatty(1))
    sys.stderr = _text_stream(2, sys.stderr, line_buffering=True)


def _text_stream(file: int, daemons: TextIO, *, line_buffering: bool) -> TextIO:
    """A stream as the daemon's own, which is of another kind of file."""
    return io.TextIOWrapper(
        os.fdopen(file, "wb", closefd=False),
        encoding=daemons.encoding,
        errors=daemons.errors,
        line_buffering=line_buffering,
        write_through=bool(os.environ.get("PYTHONUNBUFFERED")),
    )


# -- its start --------------------------------------------------------------------------------------------------------


def main(folder: str) -> None:
    """Import everything, then listen."""
    gc.disable()  # imports leave no garbage; ``import_once`` collects once, and enables it
    began = time.monotonic()
    about = place.read_about(Path(folder))
    with gpus_counted_by_nvml():
        for name in _IMPORTS:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    cli.read_arguments_once()
    forkserver.import_once()
    if not forkserver.can_use_a_gpu_after_fork():
        sys.exit("an installed package asks the GPU's driver when it is imported, so that no fork could use the GPU")
    about["seconds"] = round(time.monotonic() - began, 1)
    _Daemon(Path(folder), place.listen(Path(folder)), about).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
