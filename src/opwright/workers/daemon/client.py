"""Asks the daemon, if one listens for this environment, for processes that have imported torch already."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.workers.daemon.address import MESSAGE_BYTES, all_folders, connect, folder_of, parts, process_of
from opwright.workers.forking import ForkedProcess

__all__ = ["COMMANDS", "Origin", "about", "forked_server", "is_forked", "origin", "run_command", "stop"]

# The commands that a daemon runs: those whose own time is not what they measure.
COMMANDS = frozenset({"check", "selftest"})
# A pass of ``watch`` does not end, if it is not one pass only; it starts a process of its own to measure times.
_ONE_PASS = ("watch", "--once")
# Seconds for an answer to a request. A daemon that was stopped by a signal gives none.
_PATIENCE = 5.0
_LOOK_AFTER_DAEMON = 2.0


@dataclass(frozen=True)
class Origin:
    """The daemon that a command was forked from, and the variables that the command began with."""

    folder: Path
    environment: Mapping[str, str]


# Where this process comes from, if it was forked from a daemon, which sets it.
origin: Origin | None = None


def is_forked(arguments: Sequence[str]) -> bool:
    """Whether a daemon runs the command of these arguments of opwright."""
    command, option = _ONE_PASS
    first = next(iter(arguments), "")
    return first in COMMANDS or (first == command and option in arguments)


def run_command(arguments: Sequence[str]) -> int | None:
    """Run a command of opwright in a fork of the daemon, with the standard streams and signals of this process.

    Returns:
        Its exit code; the negative number of the signal that ended it; or None if no daemon has run it.
    """
    if not all_folders():
        return None
    connection = connect(folder_of(parts(os.environ)))
    if connection is None:
        return None
    request = {
        "do": "run",
        "arguments": list(arguments),
        "environment": dict(os.environ),
        "path": sys.path,
        "folder": os.getcwd(),
        "umask": _umask(),
    }
    sys.stdout.flush()
    sys.stderr.flush()
    with connection:
        pid = _ask(connection, request, [0, 1, 2]).get("pid")
        return None if pid is None else _follow(connection, pid)


def about(folder: Path) -> dict[str, Any]:
    """What the daemon of a folder says of itself; empty if there is none."""
    return _ask_in(folder, {"do": "tell"})


def stop(folder: Path) -> bool:
    """Let the daemon of a folder end as soon as its commands have. Returns whether there was one."""
    return bool(_ask_in(folder, {"do": "stop"}))


def _ask_in(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    connection = connect(folder)
    if connection is None:
        return {}
    with connection:
        return _ask(connection, request, [])


def forked_server(environment: Mapping[str, str], requests: socket.socket) -> ForkedProcess | None:
    """A fork server that reads requests from a socket; None if this process does not come from a daemon."""
    connection = None if origin is None else connect(origin.folder)
    if connection is None:
        return None
    printed, prints = os.pipe()
    request = {"do": "serve", "environment": dict(environment), "parent": os.getpid()}
    with connection:
        pid = _ask(connection, request, [requests.fileno(), prints]).get("pid")
    os.close(prints)
    stderr = os.fdopen(printed, "rb")
    try:
        if pid is not None:
            return ForkedProcess(pid, stderr)
    except OSError:  # it has ended, or this system has no pidfd
        pass
    stderr.close()
    return None


def _ask(connection: socket.socket, request: dict[str, Any], files: Sequence[int]) -> dict[str, Any]:
    """The answer to a request; empty if there is none in time."""
    data = json.dumps(request).encode()
    connection.settimeout(_PATIENCE)
    try:
        if len(data) > MESSAGE_BYTES:
            return {}
        socket.send_fds(connection, [data], files)
        return dict(json.loads(connection.recv(MESSAGE_BYTES) or b"{}"))
    except OSError:  # it has ended, or takes too long
        return {}


def _follow(connection: socket.socket, pid: int) -> int:
    """Wait for a command's end, and pass on the signals that this process gets. It ends with the daemon."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: _send_signal(os.kill, pid, number))
    signal.signal(signal.SIGTSTP, lambda *_: _stop_with(pid))
    if answer := _end_of(connection):
        return int(json.loads(answer)["exit"])
    _send_signal(os.killpg, pid, signal.SIGKILL)
    return -signal.SIGKILL


def _end_of(connection: socket.socket) -> bytes:
    """What the daemon says when the command has ended; nothing if the daemon has. A kernel may have stopped it."""
    connection.settimeout(_LOOK_AFTER_DAEMON)
    while True:
        try:
            return connection.recv(MESSAGE_BYTES)
        except TimeoutError:
            _send_signal(os.kill, process_of(connection), signal.SIGCONT)
        except OSError:
            return b""


def _stop_with(pid: int) -> None:
    """A terminal's Ctrl-Z: stop the command and this process, and go on together."""
    _send_signal(os.killpg, pid, signal.SIGTSTP)
    os.kill(os.getpid(), signal.SIGSTOP)
    _send_signal(os.killpg, pid, signal.SIGCONT)


def _send_signal(send: Any, pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        send(pid, number)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
