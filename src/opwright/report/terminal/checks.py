"""The output of ``opwright check --list``: what each check asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["show_checks"]


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
