"""The console that all of a command's output goes to, and its pager."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console

__all__ = ["make_console", "paged"]


def make_console(**options: Any) -> Console:
    """A console for our tables. Emoji codes are off: ``op:b:`` is a kernel's name here, not a letter in a box."""
    return Console(**{"soft_wrap": False, "emoji": False, **options})


@contextlib.contextmanager
def paged(console: Console, lines: int) -> Iterator[None]:
    """A pager around what is longer than the terminal is high; nothing where there is no terminal."""
    if not console.is_terminal or not sys.stdout.isatty() or lines <= console.height:
        yield
        return
    with console.pager(styles=True):
        yield
