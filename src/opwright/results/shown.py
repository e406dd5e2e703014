"""The record of a text to show."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Shown"]


@dataclass(frozen=True)
class Shown:
    """A text to show: a kernel's source or compiled code. ``language`` is for syntax colours."""

    title: str
    language: str
    text: str
