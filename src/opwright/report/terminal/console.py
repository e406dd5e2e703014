"""The console for all of a command's output, its pager, and lines and paragraphs on it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

__all__ = ["make_console", "one_line", "paged", "print_indented"]


def make_console(**options: Any) -> Console:
    """A console without emoji codes: ``op:b:`` is a kernel's name here, not an emoji."""
    return Console(**{"soft_wrap": False, "emoji": False, **options})


@contextlib.contextmanager
def paged(console: Console, lines: int) -> Iterator[None]:
    """A block whose output goes through a pager if it is longer than the terminal's height."""
    if not console.is_terminal or not sys.stdout.isatty() or lines <= console.height:
        yield
        return
    with console.pager(styles=True):
        yield


def one_line(name: str) -> str:
    """A name for a table, without line breaks and control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in name).split())


def print_indented(console: Console, text: Text, indent: int) -> None:
    """Print a paragraph with an indent, wrapped to the width of the terminal."""
    for line in text.wrap(console, max(20, console.width - indent)):
        line.rstrip()
        console.print(Text(" " * indent).append(line), soft_wrap=True)
