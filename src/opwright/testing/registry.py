"""What a ``conftest.py`` has asked ``ow.testing.collect`` for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Collected", "add", "collected_in"]


@dataclass(frozen=True)
class Collected:
    """One call of ``collect``: the targets, and the options of ``cases``."""

    targets: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


_by_file: dict[Path, list[Collected]] = {}


def add(file: Path, collected: Collected) -> None:
    """Note one call in a file, which may be imported again."""
    known = _by_file.setdefault(file.resolve(), [])
    if collected not in known:
        known.append(collected)


def collected_in(file: Path) -> list[Collected]:
    """The calls in a file."""
    return _by_file.get(file.resolve(), [])
