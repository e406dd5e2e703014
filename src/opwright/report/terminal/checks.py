"""The output of ``opwright check --list`` and ``--help-cases``: what each check asks, and what a case consists of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["show_cases", "show_checks"]


class _Check(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def question(self) -> str: ...
    @property
    def cases(self) -> str: ...
    @property
    def levels(self) -> tuple[str, ...]: ...


def show_checks(console: Console, checks: Iterable[_Check]) -> None:
    """Print a row for each check, in the order in which they run."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("--check", no_wrap=True)
    table.add_column("question", ratio=3)
    table.add_column("cases", ratio=2)
    table.add_column("level", no_wrap=True)
    for check in checks:
        question, cases = (text.replace("`", "").replace("*", "") for text in (check.question, check.cases))
        levels = "all" if len(check.levels) > 1 else check.levels[0]
        table.add_row(f"[bold]{escape(check.name)}[/]", escape(question), escape(cases), levels)
    console.print(table)


def show_cases(console: Console, parts: Mapping[str, str], words: Mapping[str, Mapping[str, str]]) -> None:
    """Print what ``--case`` takes: its parts with examples, and the words of each part that has a list of them."""
    console.print("A case is a text of parts, such as --case 'n=5 dtype=float16 layout=sliced'. The order is free.\n")
    width = max(len(word) for group in (parts, *words.values()) for word in group)
    for title, group in {"part": parts, **{f"{name}=": of_part for name, of_part in words.items()}}.items():
        table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
        table.add_column(title, no_wrap=True, min_width=width)
        table.add_column("meaning")
        for word, meaning in group.items():
            table.add_row(f"[bold]{escape(word)}[/]", escape(meaning.replace("`", "")))
        console.print(table)
        console.print()
