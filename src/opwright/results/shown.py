"""A text to look at."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Shown"]


@dataclass(frozen=True)
class Shown:
    """A text to look at: a kernel's source, or what a compiler made of it. ``language`` is for colours."""

    title: str
    language: str
    text: str
