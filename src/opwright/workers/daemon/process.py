"""The daemon's process: it forks commands, and fork servers for their workers.

It listens in a folder until nothing was asked for some time. A request is one message, with the files that go with it:

    run      a command of opwright, with its streams   → {"pid": …}, {"exit": …}
    serve    a fork server for a command's workers     → {"pid": …}
    tell     what there is to know                     → {"pid": …, "parts": …, …}
    stop     end, as soon as what was forked has       → {"pid": …}

If the side that asked for a command goes away, the command gets SIGHUP, as from a terminal that is closed.

A fork becomes the command, with the streams, folder, variables and signals of the caller; another one becomes its fork
server. (The library ``quicken`` forks commands too. It knows neither torch's environment nor a second kind of fork.)
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from opwright.internals.compiler import set_by_imports
from opwright.internals.cuda import gpus_counted_by_nvml
from opwright.internals.exits import forget_exit_functions, run_exit_functions
from opwright.workers import fork_server_process
from opwright.workers.daemon import address, client
from opwright.workers.forking import read_wakes, reset_signals, run_and_leave, take_streams, wakes

__all__ = ["main"]

_SECOND = 1.0


class _Daemon:
    """What listens, what was forked, and for whom."""

    def __init__(self, folder: Path, about: dict[str, Any], command: Callable[[], object]) -> None:
        self._folder, self._about, self._command = folder, about, command
        self._listeners = {address.listen(folder)}  # none, once it is ending
        self._woken, self._wake = wakes()
        self._connections: set[socket.socket] = set()
        self._commands: dict[int, socket.socket] = {}
        self._others: set[int] = set()
        self._last_request = time.monotonic()

    def run(self) -> None:
        """Answer until it is told to end, or nothing was asked for some time."""
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while self._listeners or self._commands or self._others:
            watched: list[Any] = [self._woken, *self._listeners, *self._connections]
            ready, _, _ = select.select(watched, [], [], _SECOND)
            if self._woken in ready:
                read_wakes(self._woken)
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
            address.leave(self._folder)
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
            data, files, _, _ = socket.recv_fds(connection, address.MESSAGE_BYTES, 3)
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
                pid = self._fork(lambda: _become_command(request, files, self._folder, self._command))
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
        def run() -> None:
            reset_signals()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for each in (*self._listeners, *self._connections):
                each.close()
            os.close(self._woken)
            os.close(self._wake)
            forget_exit_functions()  # the daemon's own
            np.random.seed()  # Python's and torch's generators see to that themselves
            become()

        pid = os.fork()
        if pid == 0:
            run_and_leave(run, run_exit_functions)
        return pid


def _answer(connection: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # who asked has gone
        connection.send(json.dumps(message).encode())


# -- in a fork --------------------------------------------------------------------------------------------------------


def _become_command(request: dict[str, Any], files: Sequence[int], folder: Path, command: Callable[[], object]) -> None:
    """Run the command as the process that asked would."""
    os.setpgid(0, 0)  # signals of a terminal reach who asked, and are passed on
    _take_text_streams(files)
    os.umask(request["umask"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:], sys.path[:] = request["arguments"], request["path"]
    importlib.invalidate_caches()
    client.origin = client.Origin(folder, request["environment"])
    command()


def _become_fork_server(request: dict[str, Any], files: Sequence[int]) -> None:
    with contextlib.suppress(OSError):  # the command has ended
        os.setpgid(0, os.getpgid(request["parent"]))  # a terminal's Ctrl-Z stops both
    imported = set_by_imports()
    os.environ.clear()
    os.environ.update({**imported, **request["environment"]})
    requests, stderr = files
    fork_server_process.become(socket.socket(fileno=requests), stderr, request["parent"])


def _take_text_streams(files: Sequence[int]) -> None:
    """Make these files the standard streams of Python, as a new process has them."""
    take_streams(files)
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


def main(folder: Path, imports: Sequence[str], prepare: Callable[[], object], command: Callable[[], object]) -> None:
    """Import everything, then listen.

    Args:
        imports: what commands import, besides what their workers do.
        prepare: called once, before forks.
        command: the command line, which a fork runs.
    """
    gc.disable()  # imports leave no garbage; ``import_once`` collects once, and enables it
    began = time.monotonic()
    about = address.read_about(folder)
    with gpus_counted_by_nvml():
        for name in imports:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    prepare()
    fork_server_process.import_once()
    if not fork_server_process.can_use_a_gpu_after_fork():
        sys.exit("an installed package asks the GPU's driver when it is imported, so that no fork could use the GPU")
    about["seconds"] = round(time.monotonic() - began, 1)
    _Daemon(folder, about, command).run()
