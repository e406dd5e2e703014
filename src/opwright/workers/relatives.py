"""The processes around a worker, which its kernel may stop or leave behind.

The server and the process that checks continue each other after a stop signal. The kernel's process and the server
adopt orphans, so a daemon of a kernel is found as a child that was left behind, and ends with its worker. A worker ends
with its server, whatever it waits for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

__all__ = ["adopt_orphans", "children", "end_with_parent", "is_ending", "let_go_on"]


_PF_EXITING = 0x4  # of the kernel's include/linux/sched.h


def end_with_parent(parent: int) -> None:
    """Let the system end this process when its parent ends, in whatever way, and whatever this process does then."""
    set_signal_of_parents_death = 1  # PR_SET_PDEATHSIG of prctl(2)
    ctypes.CDLL(None).prctl(set_signal_of_parents_death, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended before
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of what the descendants of this process leave behind, also if they made a session of its own:
    so it is found, and ended."""
    set_child_subreaper = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def children() -> Iterator[int]:
    """The processes whose parent is this one, but for those that have ended and wait for it to take notice."""
    if not _has_children():
        return
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            yield from (pid for pid in map(int, (task / "children").read_text().split()) if _state(pid) not in "ZX")


def _has_children() -> bool:
    """Whether there is one to wait for, of whatever thread and kind; much faster than looking for each."""
    of_all_kinds = 0x4000_0000  # __WALL of waitid(2)
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | of_all_kinds)
    except ChildProcessError:
        return False
    return True


def let_go_on(pid: int) -> bool:
    """Let a process go on, if a signal stopped it. Returns whether one had."""
    if _state(pid) != "T":
        return False
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGCONT)
    return True


def is_ending(pid: int) -> bool:
    """Whether a process has ended, or was killed and is about to end, which takes some milliseconds."""
    try:
        # A thread takes the signal of its own some time before it is marked as exiting; that of the process stays.
        pending = re.findall(r"^(?:Sig|Shd)Pnd:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        flags = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6])
    except OSError:  # it has ended, unless this system does not say
        return Path("/proc/self/stat").exists()
    was_killed = any(int(signals, 16) >> (signal.SIGKILL - 1) & 1 for signals in pending)
    return was_killed or bool(flags & _PF_EXITING)


def _state(pid: int) -> str:
    """The letter of /proc/PID/stat; X for a process that is no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
