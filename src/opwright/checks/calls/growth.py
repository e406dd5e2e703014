"""What grows from call to call: memory, address space, open files and threads that a call does not give back."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator

from opwright.checks.context import Context
from opwright.checks.memory.allocation import address_space, given_out, open_files, threads
from opwright.contract.inputs.case import Case
from opwright.results import Finding, Status

__all__ = ["findings"]

# The least number of calls, and after how many seconds there are no more.
_LEAST, _SECONDS = 8, 2.0
# After how many rounds of calls what has grown in each may be a leak, and after how many it is one: what an allocator
# keeps for later, or the C library of ended threads (their stacks), grows by chance and has an end.
_ROUNDS, _MOST_ROUNDS = 2, 5
# What an allocator may keep for later, in bytes.
_NOISE = 4 << 20
# Threads that are ending, such as those of a pool whose thread has ended, are waited for: until so long none has ended,
# and no longer than that.
_QUIET_SECONDS, _MOST_SECONDS = 0.5, 5.0
# What is counted, and what to do if each call leaves one.
_FILES, _THREADS, _ADDRESS_SPACE = "files more are open", "threads more are there", "address space"
_REMEDIES = {
    _FILES: "close what a call opens, also after an exception",
    _THREADS: "end the threads that a call starts, or keep them for the next call",
}


def findings(
    context: Context, check: str, case: Case, call: Callable[[], object], calls: int, size: int, what: str = "calls"
) -> Iterator[Finding]:
    """A warning for each kind of thing of which each of many calls leaves some.

    Args:
        call: one call, whose results are given back.
        calls: how many are made at a time, twice (five times, if something grows); fewer, if they take
            long.
        size: the bytes of the results of one.
        what: the word for the calls in messages.
    """
    gc.collect()  # a cycle of objects is given back in time
    held = [_held(context.device)]
    while len(held) <= _ROUNDS or (len(held) <= _MOST_ROUNDS and _grown(held, calls, size)):
        started = time.monotonic()
        for made in range(1, calls + 1):
            context.progress(check, str(case))
            call()
            context.synchronize()
            if len(held) == 1 and made >= _LEAST and time.monotonic() - started > _SECONDS:
                calls = made  # in the other rounds as well
                break
        gc.collect()
        held.append(_settled(context.device, held[0][_THREADS]))
    for name, grown in _grown(held, calls, size).items():
        if name in _REMEDIES:
            message, remedy = f"{grown} {name} after {calls} {what}", _REMEDIES[name]
        else:
            message = f"{name} grew by {grown / 2**20:.1f} MiB in {calls} {what}, whose results were given back"
            remedy = "give back what a call allocates, and keep no tensors in globals"
        yield Finding(check, Status.WARNING, str(case), message, remedy=remedy)


def _grown(held: list[dict[str, int]], calls: int, size: int) -> dict[str, int]:
    """What grew in each round, by how much at least, without what grew for the sake of another."""
    grown = {name: min(later[name] - before[name] for before, later in itertools.pairwise(held)) for name in held[0]}
    counts = {name: grown[name] for name in _REMEDIES if grown[name] >= calls}
    if counts:
        grown.pop(_ADDRESS_SPACE, None)  # in which threads have their stacks
    sizes = ("memory", "GPU memory", _ADDRESS_SPACE)
    most = max(_NOISE, calls * size // 4)
    largest = next(((name, grown[name]) for name in sizes if grown.get(name, 0) > most), None)
    return counts | dict([largest] if largest else [])  # memory takes address space


def _settled(device: str, threads_before: int) -> dict[str, int]:
    """What this process holds when threads that are ending have ended."""
    held = _held(device)
    began = changed = time.monotonic()
    while held[_THREADS] > threads_before and (now := time.monotonic()) < began + _MOST_SECONDS:
        if now > changed + _QUIET_SECONDS:
            break
        time.sleep(0.02)
        later = _held(device)
        if later[_THREADS] != held[_THREADS]:
            changed = now
        held = later
    return held


def _held(device: str) -> dict[str, int]:
    """What this process holds now, in bytes or numbers."""
    counts = {_THREADS: threads(), _FILES: open_files()}  # first: a thread that has ended has given its stack back
    return {**counts, **dict(given_out(device)), _ADDRESS_SPACE: address_space()}
