"""What forks have in common: they reset signals, take streams, and leave without Python's finalization."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import IO, Any, NoReturn

from opwright.workers.relatives import end_with_parent

__all__ = [
    "ForkFailedError", "ForkedProcess", "end_group", "fork", "in_fork", "read_wakes", "reset_signals",
    "run_and_leave", "take_streams", "wakes",
]  # fmt: skip


class ForkedProcess:
    """The part of ``subprocess.Popen`` that a parent needs of a fork, whose parent may be another process.

    Raises:
        OSError: it has ended, or this system has no pidfd.
    """

    def __init__(self, pid: int, stderr: IO[bytes]) -> None:
        self.pid, self.stderr = pid, stderr
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """0 once it has ended (only its parent knows its exit code), else None."""
        return 0 if select.select([self._ended], [], [], 0)[0] else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        if not select.select([self._ended], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
        return 0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._ended, signal.SIGKILL)


# -- in a process that forks


def wakes() -> tuple[int, int]:
    """The ends of a pipe that can be read once a child of this process has ended."""
    woken, wake = os.pipe()
    for descriptor in (woken, wake):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return woken, wake


def read_wakes(woken: int) -> None:
    """Empty the pipe of ``wakes``."""
    with contextlib.suppress(BlockingIOError):
        os.read(woken, 4096)


# -- in a fork


def reset_signals() -> None:
    """Handle signals as a new process does, and wake no parent."""
    signal.set_wakeup_fd(-1)
    for number in (
        signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT,
    ):  # fmt: skip
        signal.signal(number, signal.SIG_DFL)


def take_streams(files: Sequence[int]) -> None:
    """Make these files the standard input, output and error stream."""
    for stream, file in enumerate(files):
        os.dup2(file, stream)


def run_and_leave(run: Callable[[], object], at_exit: Callable[[], object] = lambda: None) -> NoReturn:
    """Run a function, and leave with its exit code: Python's finalization would visit each object of torch."""
    code = 1
    try:
        run()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            at_exit()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


# -- a function in a fork


class ForkFailedError(Exception):
    """A function raised, or its fork ended without a result; the text says which."""


def in_fork(run: Callable[[], Any], seconds: float) -> Any:
    """What a function returns in a fork of this process, for code whose effects this process must not have.

    Args:
        run: returns something that JSON has.

    Raises:
        TimeoutError: it did not return in time; it was ended.
        ForkFailedError: it raised, or ended its process.
    """
    reader, writer = os.pipe()
    parent, child = os.getpid(), fork()
    if child is None:
        raise ForkFailedError("the system has no room for a process")
    if child == 0:
        os.close(reader)
        _answer(run, writer, parent)
    os.close(writer)
    try:
        text = _read_all(reader, time.monotonic() + seconds)
    finally:
        os.close(reader)
        end_group(child)
    try:
        answer = json.loads(text)
    except ValueError:
        raise ForkFailedError("its process ended") from None
    if "raised" in answer:
        raise ForkFailedError(answer["raised"])
    return answer["returned"]


def fork() -> int | None:
    """As ``os.fork``; None where the system has no room for a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, none of which the child waits for
        try:
            return os.fork()
        except OSError:
            return None


def end_group(child: int) -> None:
    """End a child that has a session of its own, with what it has started there, and wait for it."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def _answer(run: Callable[[], Any], writer: int, parent: int) -> NoReturn:
    os.setsid()
    end_with_parent(parent)
    reset_signals()
    # Messages of this process would go to a connection of its parent, in the midst of others.
    for logger in (logging.getLogger(), logging.getLogger("opwright")):
        logger.handlers = [logging.NullHandler()]

    def answered() -> None:
        try:
            text = json.dumps({"returned": run()})
        except Exception:
            text = json.dumps({"raised": traceback.format_exc(limit=-4)})
        with open(writer, "w", encoding="utf-8") as file:
            file.write(text)

    run_and_leave(answered)


def _read_all(reader: int, until: float) -> str:
    parts: list[bytes] = []
    while True:
        if not select.select([reader], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError
        part = os.read(reader, 1 << 16)
        if not part:
            return b"".join(parts).decode(errors="replace")
        parts.append(part)
