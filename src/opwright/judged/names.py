"""Names of tasks and candidates as identifiers."""

from __future__ import annotations

import re

__all__ = ["unique"]


def unique(name: str, taken: set[str]) -> str:
    """The name as an identifier that no other one has; it is added to those that are taken."""
    plain = re.sub(r"\W+", "_", name)
    plain = plain if plain[:1].isalpha() else f"task_{plain}"
    while plain in taken:
        plain += "_"
    taken.add(plain)
    return plain
