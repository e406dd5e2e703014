"""Extensions that no call waits for: a thread loads or builds them after some calls."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from opwright.backends.build_tools import BuildTools

__all__ = ["Background"]

Loaded = TypeVar("Loaded")
# Programs with fewer calls do without an extension: for them it would not be worth its build.
_CALLS_BEFORE_A_BUILD = 200


class _Guarded(Protocol):
    def _forget_guards(self) -> None: ...


class Background(Generic[Loaded]):
    """An extension.

    Attributes:
        loaded: None before it is, and where it cannot be.
        thread: the thread that loads it.
    """

    def __init__(self, load: Callable[[BuildTools, bool], Loaded | None], after: int = _CALLS_BEFORE_A_BUILD) -> None:
        self.loaded: Loaded | None = None
        self.thread: threading.Thread | None = None
        self._load = load
        self._remaining, self._is_settled = after, False
        self._waiting: weakref.WeakSet[_Guarded] = weakref.WeakSet()

    def counting(self, tools: BuildTools, guarded: _Guarded) -> Callable[[], None] | None:
        """A function that counts a call in Python; None if there is nothing to wait for. What keeps guarded calls makes
        new ones once the extension is loaded, or is not to be had."""
        if self._is_settled:
            return None
        self._waiting.add(guarded)

        def count() -> None:
            if self._remaining > 0:
                self._remaining -= 1
                if self._remaining == 0:
                    self.thread = threading.Thread(target=self.load, args=(tools,), name="opwright-build", daemon=True)
                    self.thread.start()

        return count

    def load(self, tools: BuildTools, *, build: bool = True) -> None:
        """Load the extension, built if it is not in the cache.

        Args:
            build: False: what is not in the cache is not built in this process later either, as that would disturb
                what it times or watches.
        """
        self._remaining = 0
        self.loaded, self._is_settled = self.loaded or self._load(tools, build), True
        for each in list(self._waiting):
            each._forget_guards()
        self._waiting.clear()
