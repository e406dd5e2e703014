"""Runs a command in a child process, so that code which a command imports cannot decide the exit code.

``os._exit(0)`` in a file to be checked, at its import or in an ``atexit`` function, would otherwise end the command as
if it had passed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

__all__ = ["run_supervised"]


# Seconds for which a stopped child stays so: longer than its own processes need to find and to tell it.
_PATIENCE = 10.0


# What interrupts a command. One that follows within so many seconds is the same: whoever presses Ctrl-C twice.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ECHO = 1.0


def run_supervised(command: Callable[[], int], otherwise: int, interrupted: int, suspect: str) -> NoReturn:
    """Run a command in a child process, and exit with the code that it returns.

    Args:
        otherwise: the exit code if the process ends before the command returns one.
        interrupted: the exit code if the user does not wait for what is finished to be written.
        suspect: what ends a process before its command does, for the message.
    """
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _run(command, write)
    os.close(write)
    for number in _ENDING:
        signal.signal(number, functools.partial(_pass_on, pid))
    signal.signal(signal.SIGCHLD, functools.partial(_look_after, pid))
    with os.fdopen(read, "rb") as reported:
        code = reported.read(16)
    _, status = os.waitpid(pid, 0)
    if code.isdigit():
        sys.exit(int(code))
    if signal.getsignal(signal.SIGINT) is _ended_at_once:
        print("opwright: ended before it had written what is finished", file=sys.stderr)
        sys.exit(interrupted)
    ended = os.waitstatus_to_exitcode(status)
    how = f"with exit code {ended}" if ended >= 0 else f"by {signal.Signals(-ended).name}"
    print(f"opwright: ended {how} before the command did, by {suspect}", file=sys.stderr)
    sys.exit(otherwise)


def _run(command: Callable[[], int], write: int) -> NoReturn:
    os.set_inheritable(write, False)
    for number in _ENDING:
        signal.signal(number, _interrupt)
    code = command()
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(write, str(code).encode())
    os.close(write)
    sys.exit(code)


def _pass_on(pid: int, number: int, frame: object) -> None:
    """Pass a first signal on to the child, which then writes what is finished; a later one ends it, if it is no echo of
    the first."""
    since = time.monotonic()

    def end(*_: object) -> None:
        if time.monotonic() - since > _ECHO:
            for each in _ENDING:
                signal.signal(each, _ended_at_once)
            os.kill(pid, signal.SIGKILL)

    for each in _ENDING:
        signal.signal(each, end)
    os.kill(pid, number)


def _ended_at_once(*_: object) -> None:
    """Handles signals after the child was killed."""


def _look_after(pid: int, number: int, frame: object) -> None:
    """Continue the child soon if it was stopped, as code that it runs may do; but not after a terminal's Ctrl-Z.

    Its own processes look after each other (``fork_server_process.py``) and tell; this is for when all are
    stopped.
    """
    with contextlib.suppress(ChildProcessError):
        changed = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
        if changed is not None and changed.si_status == signal.SIGSTOP:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGCONT))
            signal.setitimer(signal.ITIMER_REAL, _PATIENCE)


def _interrupt(*_: object) -> NoReturn:
    """The other signals end a command as Ctrl-C does. A terminal sends Ctrl-C to both processes: the second is
    ignored."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
