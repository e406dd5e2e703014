"""Pins the threads of this process to separate processors while they are timed on a CPU."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

__all__ = ["choose_cpus", "load_before", "pinned"]

_CPUS = Path("/sys/devices/system/cpu")


def load_before() -> dict[str, str]:
    """How many programs wanted a core in the last minute, if that is more than half of the cores: verdicts may be wrong
    then, because what runs on several threads waits for a core that something else has."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {"load before": f"{load:.1f} on {cores} cores"} if load > cores / 2 else {}


@contextlib.contextmanager
def pinned(cpus: Collection[int]) -> Iterator[None]:
    """A block in which every thread of this process runs on these processors only.

    All threads get the whole set, not one each: OpenMP's workers cannot be distinguished from others, and a thread that
    a kernel starts inherits the set of the thread that started it. One processor pins them; several keep them from
    sharing cores and from moving elsewhere.
    """
    before = {thread: _affinity(thread) for thread in _threads()} if cpus else {}
    try:
        for thread in before:
            _set_affinity(thread, cpus)
        yield
    finally:
        everywhere = set().union(*(a for a in before.values() if a)) if before else set()
        for thread in _threads() if before else ():
            _set_affinity(thread, before.get(thread) or everywhere)  # a new thread has inherited the set


def choose_cpus(count: int, allowed: Collection[int] | None = None) -> tuple[int, ...]:
    """Choose a processor for each of ``count`` threads: separate cores, least busy first. () if there are too few."""
    if not hasattr(os, "sched_setaffinity"):
        return ()
    available = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    if count > len(available):
        return ()
    busy = _busy_ticks(0.05) if count < len(available) else {}
    taken: list[int] = []
    cores: set[Sequence[int]] = set()
    for cpu in sorted(available, key=lambda c: (busy.get(c, 0), c)):
        if (core := _core_of(cpu)) not in cores:
            cores.add(core)
            taken.append(cpu)
    taken += [c for c in available if c not in taken]  # more threads than cores: some have to share
    return tuple(sorted(taken[:count]))


def _threads() -> list[int]:
    try:
        return [int(p.name) for p in Path("/proc/self/task").iterdir()]
    except OSError:
        return [0]  # the calling one


def _affinity(thread: int) -> set[int]:
    with contextlib.suppress(OSError):  # it has just ended
        return os.sched_getaffinity(thread)
    return set()


def _set_affinity(thread: int, cpus: Collection[int]) -> None:
    with contextlib.suppress(OSError):
        os.sched_setaffinity(thread, cpus)


def _core_of(cpu: int) -> tuple[int, ...]:
    """The processors that share a core with this one."""
    try:
        text = (_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
        spans = [part.split("-") for part in text.strip().split(",")]
        return tuple(c for s in spans for c in range(int(s[0]), int(s[-1]) + 1))
    except (OSError, ValueError):
        return (cpu,)


def _busy_ticks(seconds: float) -> dict[int, int]:
    """How long each processor is busy during an interval."""
    before = _ticks()
    time.sleep(seconds)
    return {cpu: ticks - before.get(cpu, ticks) for cpu, ticks in _ticks().items()}


def _ticks() -> dict[int, int]:
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return {}
    fields = [line.split() for line in lines if line.startswith("cpu") and line[3:4].isdigit()]
    # user nice system idle iowait irq …: what is neither idle nor waiting
    return {int(f[0][3:]): sum(map(int, f[1:8])) - int(f[4]) - int(f[5]) for f in fields}
