"""How long a function of the author's takes, and whether a step of a check has time for it.

A function's own time is that of the clock, or that of the processor if it is less, as other work may slow it down.
Only its own time is held against it, so that a light one is not left out because the machine is busy: where it has not
returned at the deadline, but has hardly used the processor, it goes on. So does one that waits (for a file, a lock,
another process), which cannot be told from it: the step's own time-out then decides, which says "inconclusive".
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable

__all__ = ["takes_too_long", "time_of"]

# A step of a check takes up to so many times as long as the reference: to count its operations, say.
_CALLS_IN_A_STEP = 40
# A second has to be enough, however short a step may be: the reference's first call in a process takes a while.
_LEAST_S = 1.0
# All that is timed ends within this part of a step, and after so many seconds if these are no less than half of it.
_SHARE, _ENOUGH_S = 0.8, 10.0
# The alarm comes again: code that catches everything, and a destructor, swallow what it raises.
_AGAIN_S = 0.5


class _TooLong(BaseException):
    """No Exception, which the function may catch."""


def takes_too_long(first: Callable[[], object], again: Callable[[], object], timeout: float) -> str:
    """How long a reference takes, if steps of so many seconds are too short for it; else "".

    Args:
        first: calls it for the first time, which may compile something.
        again: calls it again, if the first call took too long.
    """
    limit = max(_LEAST_S, timeout / _CALLS_IN_A_STEP)
    stop = min(max(_ENOUGH_S, timeout / 2), _SHARE * timeout)
    began = time.monotonic()
    took = time_of(first, stop, min(limit, stop / 2))
    if took == math.inf:
        return f"more than {stop:g} s"
    left = stop - (time.monotonic() - began)
    if took > limit and left > 0:
        second = time_of(again, left)
        took = second if second < math.inf else took
    return f"{took:.0f} s" if took > limit else ""


def time_of(run: Callable[[], object], stop_s: float, least_s: float = 0.0) -> float:
    """The function's own time in seconds; infinity if it was stopped.

    It is stopped between two instructions of Python, so not within a call of torch, and only in the main thread. If it
    was to be stopped and went on all the same, whatever it returns or raises is not its result.

    Args:
        stop_s: when it is stopped, by the clock.
        least_s: its own time by then; if it is less, the function goes on until it has used as much.
    """
    began, used = time.monotonic(), time.process_time()

    def own_s() -> float:
        return min(time.monotonic() - began, time.process_time() - used)

    if threading.current_thread() is not threading.main_thread():
        run()
        return own_s()
    is_running, is_stopped = True, False

    def stop(*_: object) -> None:
        nonlocal is_stopped
        if is_running and own_s() >= least_s:
            is_stopped = True
            raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    alarm, interval = 0.0, 0.0
    try:
        alarm, interval = signal.setitimer(signal.ITIMER_REAL, stop_s, _AGAIN_S)
        run()
    except (Exception, _TooLong):
        is_running = False  # first of all: no second alarm may raise where nothing handles it
        if not is_stopped:
            raise
    finally:
        is_running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
        if alarm:  # another one was set, as for a time limit of the whole process
            signal.setitimer(signal.ITIMER_REAL, max(alarm - (time.monotonic() - began), 1e-3), interval)
    return math.inf if is_stopped else own_s()
