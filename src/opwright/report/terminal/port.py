"""The output of ``opwright port``: what was replaced, what remains to be done by hand, and what the checks say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from opwright.report.terminal.check import show_check
from opwright.results.port import Compared, PortedFile, PortReport, Remaining

__all__ = ["show_port"]

_MOST_LINES = 8


def show_port(console: Console, report: PortReport, *, verbose: bool = False) -> None:
    """Print a port's report. ``verbose`` lists every name that was replaced, with its lines."""
    for file in report.files:
        _show_file(console, file, verbose=verbose)
    if report.wrappers:
        names = ", ".join(report.wrappers)
        console.print(f"called through torch's dispatcher: {escape(names)}", highlight=False)
    if report.remaining:
        count = len(report.remaining)
        console.print(f"\n[bold yellow]{count} place{'s' * (count > 1)} to do by hand[/]")
        for line in _grouped(report.remaining):
            console.print(f"  {escape(line)}", soft_wrap=True, highlight=False)
    console.print(f"\n{_compiled(report)}", highlight=False)
    for compared in report.compared:
        console.print(_comparison(compared), soft_wrap=True, highlight=False)
    if report.checked is not None:
        show_check(console, report.checked)
    if not report.compared and report.is_complete:
        console.print(
            "not compared with the original: pass --op FILE, with an operator to which it is attached, as in "
            "op.cpp(…, abi='aten')",
            soft_wrap=True,
        )  # fmt: skip


def _show_file(console: Console, file: PortedFile, *, verbose: bool) -> None:
    before, after = file.lines
    replaced = sum(len(m.lines) for m in file.mapped)
    console.print(
        f"[bold]{escape(Path(file.source).name)}[/] → {escape(file.result)}: {replaced} names replaced, "
        f"{before} lines before, {after} after",
        soft_wrap=True, highlight=False,
    )  # fmt: skip
    for one in file.mapped if verbose else ():
        console.print(f"  {escape(one.before)} → {escape(one.after)}  [dim]{_lines(one.lines)}[/]", highlight=False)
    for left_out in file.left_out:
        console.print(f"  line {left_out.line}: {escape(left_out.what)}", soft_wrap=True, highlight=False)
    for function, form in file.wrapped.items():
        console.print(f'  {escape(function)}() is attached with entry="{escape(form)}"', highlight=False)


def _lines(lines: Iterable[int]) -> str:
    shown = sorted(set(lines))
    more = f", … ({len(shown)} lines)" if len(shown) > _MOST_LINES else ""
    return f"line{'s' * (len(shown) > 1)} {', '.join(map(str, shown[:_MOST_LINES]))}{more}"


def _grouped(remaining: Sequence[Remaining]) -> list[str]:
    """One line for each problem of a file, with the lines on which it is."""
    groups: dict[tuple[str, str], list[int]] = {}
    for one in remaining:
        groups.setdefault((one.file, one.what), []).append(one.line)
    return [f"{file}:{', '.join(map(str, sorted(set(lines))))}: {what}" for (file, what), lines in groups.items()]


def _compiled(report: PortReport) -> str:
    if report.compiled is None:
        return f"not compiled: {report.not_compiled}"
    if report.compiled:
        return f"[green]compiles[/] on torch's stable ABI ({report.compile_seconds:.1f} s)"
    return "[red]does not compile[/] yet"


def _comparison(compared: Compared) -> str:
    who = f"{escape(compared.operator)}: {escape(compared.ported)} beside {escape(compared.original)}"
    if compared.not_run:
        return f"[dim]–[/] {who}: not run: {escape(compared.not_run)}"
    if compared.different:
        return f"[red]✗[/] {who}: {escape(compared.different)}"
    if not compared.cases:
        return f"[red]✗[/] {who}: no case could be compared, the original refused all {compared.refused}"
    rounding = f", the others within {compared.largest:.2g} roundings" if compared.largest else ""
    wrong = (
        f"; left out: {compared.original_wrong} in which they differ and the original is wrong"
        if compared.original_wrong
        else ""
    )
    return (
        f"[green]✓[/] {who}: the same values in {compared.cases} cases, {compared.identical} of them bit for bit"
        f"{rounding}{wrong}"
    )
