"""The output of ``opwright bench --calls``: the host time of each way to call an operator."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from opwright.report.format import case_text
from opwright.results import CallsReport, CallTime, OperatorCalls

__all__ = ["show_calls"]


def show_calls(console: Console, report: CallsReport) -> None:
    """Print a table for each operator: microseconds with their interval, and ratios to ``torch.add``."""
    for found in report.operators:
        what = f"{escape(case_text(found.case))} [dim]on {found.device}: runs {escape(found.kernel)}[/]"
        console.print(f"[bold]{escape(found.op)}[/] {what}", highlight=False)
        console.print(_table(found))
        console.print()
    for error in report.errors:
        console.print(f"[bold red]✗[/] {escape(error)}", soft_wrap=True, highlight=False)


def _table(found: OperatorCalls) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("a call of")
    for column in ("host µs", "95 %", "× torch.add"):
        table.add_column(column, justify="right", no_wrap=True)
    for yardstick in found.yardsticks:
        _add_row(table, yardstick, yardstick.way, "dim")
        _add_rows(table, [way for way in found.ways if way.yardstick == yardstick.way], "")
        if yardstick is found.yardsticks[0] and found.steps:
            table.add_row("[dim]of the operator's call:[/]")
            _add_rows(table, found.steps, "  ")
            rest = found.ways[0].us.median - sum(step.us.median for step in found.steps)
            table.add_row("  Python around them", f"{max(rest, 0.0):.2f}")
        table.add_row("")
    return table


def _add_rows(table: Table, times: Sequence[CallTime], indent: str) -> None:
    for time in times:
        _add_row(table, time, f"{indent}{time.way}", "")


def _add_row(table: Table, time: CallTime, label: str, style: str) -> None:
    interval = f"{time.us.lo:.2f} – {time.us.hi:.2f}"
    table.add_row(escape(label), f"{time.us.median:.2f}", f"[dim]{interval}[/]", f"{time.ratio:.2f}", style=style)
