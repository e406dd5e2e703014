"""Which artifacts there are in the cluster and who builds one now, in an actor of Ray."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["LEASE_S", "ArtifactStore"]

# Who builds says so again within this time; else it has died, and another one builds.
LEASE_S = 15.0


class ArtifactStore:
    """Artifacts by their key: what they were built from, and for which target. It owns them, so that they outlive the
    worker that has built them.

    Args:
        put: puts bytes into Ray's object store, and returns what stands for them.
    """

    def __init__(self, put: Callable[[bytes], Any] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._put, self._clock = put or _put, clock
        self._stored: dict[str, dict[str, Any]] = {}
        self._builders: dict[str, tuple[str, float]] = {}

    def want(self, key: str, who: str, known: list[str]) -> tuple[dict[str, Any], bool]:
        """The artifacts of a key other than those that the machine has, by folder; and whether to wait for another
        machine that builds one. With neither, it is the caller's turn.

        A key may have several, which were built from different headers: whether one fits is seen on the machine.
        """
        new = {name: ref for name, ref in self._stored.get(key, {}).items() if name not in known}
        builder, until = self._builders.get(key, (who, 0.0))
        if not new and builder != who and self._clock() < until:
            return {}, True
        if not new:
            self.builds(key, who)
        return new, False

    def builds(self, key: str, who: str) -> None:
        """The caller still builds it."""
        self._builders[key] = (who, self._clock() + LEASE_S)

    def ends(self, key: str, who: str, name: str, data: bytes) -> None:
        """The caller has built it, or with an empty name has not."""
        if self._builders.get(key, ("", 0.0))[0] == who:
            del self._builders[key]
        if name:
            self._stored.setdefault(key, {})[name] = self._put(data)

    def size(self) -> int:
        """How many artifacts there are."""
        return sum(map(len, self._stored.values()))


def _put(data: bytes) -> Any:
    import ray

    return ray.put(data)
