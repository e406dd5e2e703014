"""Estimates the time left from the passes done so far. Does not import torch."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["TimeLeft"]


class TimeLeft:
    """Counts the measurement passes (one candidate, one way of timing it) that are done and planned.

    A pass takes between the stop rule's minimum and maximum, so the mean of a few is a fair estimate; before
    that, the time left is reported as unknown.
    """

    # The first passes do not count: compilers and caches are cold.
    _FEW = 3

    def __init__(self, planned: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._planned = planned
        self._done = self._taken = 0
        self._clock = clock
        self._started = clock()

    def add_done(self, passes: int) -> None:
        """Add passes that were measured."""
        self._done += passes
        self._taken += passes

    def reached(self, passes: int) -> None:
        """Set the number of planned passes that are over; those of refused kernels took no time."""
        self._done = max(self._done, passes)

    def __str__(self) -> str:
        left = self._planned - self._done
        if self._taken < self._FEW:
            return "time left unknown"
        if left <= 0:
            return "nearly done"
        return f"about {_duration_text((self._clock() - self._started) / self._taken * left)} left"


def _duration_text(seconds: float) -> str:
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
