"""What forks have in common: they reset signals, take streams, and leave without Python's finalization."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import IO, NoReturn

__all__ = ["ForkedProcess", "read_wakes", "reset_signals", "run_and_leave", "take_streams", "wakes"]


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
