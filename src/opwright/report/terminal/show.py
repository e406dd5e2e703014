"""The output of ``opwright show``: an operator's schema and parts, and the source or compiled code of its kernels."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from opwright.results import Part, Shown

__all__ = ["show_parts", "show_text"]

_ORIGINS = {"derived": "cyan", "custom": "green", "missing": "red"}


def show_parts(console: Console, op: str, schema: str, parts: Iterable[Part]) -> None:
    """Print an operator's schema, and the origin of each of its parts."""
    console.print(f"[bold]{escape(op)}[/]{escape(schema)}", soft_wrap=True, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("part", "", "how"):
        table.add_column(column)
    for part in parts:
        table.add_row(part.name, f"[{_ORIGINS[part.origin]}]{part.origin}[/]", escape(part.how))
    console.print(table)


def show_text(console: Console, of: str, shown: Shown) -> None:
    """Print a kernel's source or compiled code, coloured on a terminal."""
    console.print(f"[bold]{escape(of)}[/]  [dim]{escape(shown.title)}[/]", soft_wrap=True, highlight=False)
    lexer = {"sass": "nasm", "asm": "nasm"}.get(shown.language, shown.language)
    if console.is_terminal and lexer != "text":
        console.print(Syntax(shown.text, lexer, theme="ansi_dark", background_color="default", word_wrap=False))
    else:
        console.print(shown.text, markup=False, highlight=False, soft_wrap=True)
    console.print()
