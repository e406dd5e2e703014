"""Lines and paragraphs on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

__all__ = ["one_line", "print_indented"]


def one_line(name: str) -> str:
    """A name for a table, without line breaks and control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in name).split())


def print_indented(console: Console, text: Text, indent: int) -> None:
    """Print a paragraph with an indent, wrapped to the width of the terminal."""
    for line in text.wrap(console, max(20, console.width - indent)):
        line.rstrip()
        console.print(Text(" " * indent).append(line), soft_wrap=True)
