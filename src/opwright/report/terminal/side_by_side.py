"""Prints two texts side by side, line by line, with differences marked."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import zip_longest

from opwright.results import Shown

__all__ = ["side_by_side"]


def side_by_side(left: tuple[str, str], right: tuple[str, str], width: int) -> tuple[str, Shown]:
    """Two (title, text) in columns that fill ``width``; ``|`` between lines that differ, ``<`` and ``>`` if one side
    has no line."""
    column_width = max((width - 3) // 2, 20)
    rows = [(left[0], " ", right[0]), ("-" * column_width, "-", "-" * column_width)]
    rows += _aligned(left[1].splitlines(), right[1].splitlines())
    lines = [f"{_cut(a, column_width):<{column_width}} {mark} {_cut(b, column_width)}".rstrip() for a, mark, b in rows]
    return "side by side", Shown(f"{left[0]} and {right[0]}", "text", "\n".join(lines))


def _aligned(left: list[str], right: list[str]) -> Iterator[tuple[str, str, str]]:
    for kind, i, j, k, m in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for a, b in zip_longest(left[i:j], right[k:m]):
            mark = " " if kind == "equal" else "<" if b is None else ">" if a is None else "|"
            yield a or "", mark, b or ""


def _cut(line: str, column_width: int) -> str:
    line = line.expandtabs(4)
    return line if len(line) <= column_width else line[: column_width - 1] + "…"
