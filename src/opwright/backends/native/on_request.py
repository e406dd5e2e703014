"""Extensions that are loaded if they have been built, and built only on request.

An extension on torch's own C++ headers takes some 20 s to compile. No call waits for that, and nothing is compiled
unasked beside a user's program: ``opwright doctor --build``, and commands that time calls, build it once for a torch, a
Python and a compiler. Every later process loads it from the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from opwright.backends.build_tools import BuildTools, build_tools

__all__ = ["OnRequest"]

Loaded = TypeVar("Loaded")
# A look into the cache takes some milliseconds, which programs of a few calls do without.
_CALLS_BEFORE_A_LOOK = 16
# A program of so many calls would gain from the extension.
_CALLS_BEFORE_A_HINT = 10_000


class OnRequest(Generic[Loaded]):
    """An extension.

    Args:
        hint: what to tell a program of many calls without the extension; empty: nothing.
        load: takes the tools and whether to build; returns None if the extension does not load, or is not in the cache
            and cannot or shall not be built.

    Attributes:
        loaded: None until it is loaded.
    """

    def __init__(self, load: Callable[[BuildTools, bool], Loaded | None], hint: str = "") -> None:
        self.loaded: Loaded | None = None
        self._load, self._hint = load, hint
        self._calls = 0
        self._lock = threading.Lock()

    def after_some_calls(self) -> Loaded | None:
        """Count a call, and look into the cache after some; the extension if it is loaded."""
        self._calls += 1
        if self._calls == _CALLS_BEFORE_A_LOOK:
            self.load(build_tools(), build=False)
        elif self._calls == _CALLS_BEFORE_A_HINT and self._hint and self.loaded is None:
            build_tools().notify(self._hint)
        return self.loaded

    def load(self, tools: BuildTools, *, build: bool) -> None:
        """Load the extension now.

        Args:
            build: compile it if it is not in the cache.
        """
        with self._lock:
            self._calls = max(self._calls, _CALLS_BEFORE_A_LOOK)
            if self.loaded is None:
                self.loaded = self._load(tools, build)
