"""The notes of running tasks, in an actor of Ray that workers write to and the driver reads."""

from __future__ import annotations

from typing import Any

__all__ = ["Board"]


class Board:
    """Holds the newest note of each item until the driver takes it."""

    def __init__(self) -> None:
        self._notes: dict[int, Any] = {}

    def write(self, note: Any) -> None:
        """Store a note; it replaces the item's one before."""
        self._notes[note.number] = note

    def take(self) -> list[Any]:
        """The notes since the last call."""
        notes, self._notes = list(self._notes.values()), {}
        return notes
