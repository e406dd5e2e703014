"""How long a function of the author's takes, up to a limit."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable

__all__ = ["time_of"]


class _TooLong(BaseException):
    """No Exception, which the function may catch."""


def time_of(run: Callable[[], object], limit_s: float | None = None) -> float:
    """The seconds that a function takes, or those of the processor, if these are fewer, as other work may slow it down;
    infinity if it was stopped after the limit.

    It is stopped between two instructions of Python, so not within a call of torch, and only in the main thread.
    """
    began, used = time.monotonic(), time.process_time()

    def taken() -> float:
        return min(time.monotonic() - began, time.process_time() - used)

    if limit_s is None or threading.current_thread() is not threading.main_thread():
        run()
        return taken()

    def stop(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            run()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _TooLong:
        return math.inf
    finally:
        signal.signal(signal.SIGALRM, before)
    return taken()
