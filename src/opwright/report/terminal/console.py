"""The console for all of a command's output, and its pager."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console

__all__ = ["make_console", "paged"]


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
