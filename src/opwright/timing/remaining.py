"""How long is left: what was done so far, by what it took. No torch here."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["TimeLeft"]


class TimeLeft:
    """Counts measurement passes (one candidate, one way of timing it) that are done and to come.

    A pass takes between the stop rule's least and most, so their mean is a fair guess once there were a few; before
    that nothing is known, and it says so.
    """

    # The first passes are no guide: compilers and caches are cold.
    _FEW = 3

    def __init__(self, planned: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._planned = planned
        self._done = self._taken = 0
        self._clock = clock
        self._started = clock()

    def did(self, passes: int) -> None:
        """So many passes were taken."""
        self._done += passes
        self._taken += passes

    def reached(self, passes: int) -> None:
        """So many of the planned passes lie behind; what was planned and not taken (a refused kernel) took no time."""
        self._done = max(self._done, passes)

    def __str__(self) -> str:
        left = self._planned - self._done
        if self._taken < self._FEW:
            return "time left unknown"
        if left <= 0:
            return "nearly done"
        return f"about {_words((self._clock() - self._started) / self._taken * left)} left"


def _words(seconds: float) -> str:
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
