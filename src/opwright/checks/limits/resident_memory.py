"""A limit on the memory that a process and its descendants have, from outside of it.

What is resident counts, and not addresses: CUDA reserves terabytes of these, which a limit of the system (RLIMIT_AS)
would refuse. A limit on data (RLIMIT_DATA) would count each process by itself. A control group would do, and most
containers may make none.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from opwright.checks.limits.shortage import free_bytes

__all__ = ["MemoryWatch", "end_first_where_memory_is_short", "usual_limit"]

# Seconds between two looks. Memory is filled with some gigabytes a second.
_AGAIN_S = 0.05
# What is left to others; and what a process may have even if many run at a time.
_SHARE, _LEAST = 0.8, 4 << 30
_RESIDENT = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)
# Pages that a process shares with others, such as the one that it was forked from, count in part.
_PROPORTIONAL = re.compile(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)


def usual_limit(processes: int) -> int:
    """The bytes that each of so many processes may have on this machine; 0 for no limit, if it does not say."""
    all_of_them = int(_SHARE * free_bytes("cpu"))
    return max(min(_LEAST, all_of_them), all_of_them // processes)


def end_first_where_memory_is_short() -> None:
    """Let the system end this process and its descendants before others, such as those that check it."""
    with contextlib.suppress(OSError):  # the system has no such file, or refuses it
        Path("/proc/self/oom_score_adj").write_text("1000")


class MemoryWatch:
    """Within a block, ends a process that has more memory than a limit.

    Args:
        pid: the process, which may have descendants.
        limit: in bytes; 0 for none.

    Attributes:
        exceeded: the limit, once the process was ended for it; else 0.
    """

    def __init__(self, pid: int, limit: int) -> None:
        self._pid, self._limit, self.exceeded = pid, limit, 0
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        if self._limit:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        if self._limit:
            self._thread.join()

    def _watch(self) -> None:
        while not self._has_ended.wait(_AGAIN_S):
            family = list(_family(self._pid))
            # The second look is exact, and slow.
            if all(sum(_bytes(pid, *how) for pid in family) > self._limit for how in (_QUICK, _EXACT)):
                self.exceeded = self._limit
                for pid in family:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                return


_QUICK, _EXACT = ("status", _RESIDENT), ("smaps_rollup", _PROPORTIONAL)


def _bytes(pid: int, file: str, pattern: re.Pattern[str]) -> int:
    """What a process has; 0 if it has ended. A system that has no exact answer gives the quick one."""
    try:
        text = Path(f"/proc/{pid}/{file}").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0 if (file, pattern) == _QUICK else _bytes(pid, *_QUICK)
    return 1024 * sum(map(int, pattern.findall(text)))


def _family(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    with contextlib.suppress(OSError):  # it has ended, or the system does not say
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))
