"""The output of ``opwright bench``: times with their spread, comparisons, and the fastest kernel by size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from opwright.report.terminal.console import print_indented
from opwright.results import BenchReport, Comparison, ComparisonVerdict, Crossover, Measurement

__all__ = ["COMPARISON_STYLES", "show_bench", "show_regressions"]

COMPARISON_STYLES = {
    ComparisonVerdict.FASTER: "green",
    ComparisonVerdict.SLOWER: "red",
    ComparisonVerdict.SAME: "cyan",
    ComparisonVerdict.UNCLEAR: "yellow",
}


def show_bench(console: Console, report: BenchReport) -> None:
    """Print one table per operator and direction: times with their intervals, rates, and comparisons."""
    groups: dict[tuple[str, str, str, str], list[Measurement]] = {}
    for m in report.measurements:  # of one machine each: times of several are not put side by side
        groups.setdefault((m.op, m.direction, m.device_name, m.host), []).append(m)
    for (op, direction, device_name, host), measured in groups.items():
        where = f"{device_name}, {host}" if host else measured[0].device
        console.print(f"[bold]{escape(op)}[/] {direction} [dim]on {escape(where)}[/]", highlight=False)
        for table in _tables(measured, console.width):
            console.print(table)
            console.print()
    _show_crossovers(console, report.crossovers)
    if report.settings:
        settings = ", ".join(f"{name}: {value}" for name, value in report.settings.items())
        console.print(f"[dim]the same for all: {escape(settings)}[/]", soft_wrap=True, highlight=False)
    if any(_spread(m) > _TELLING for m in report.measurements):
        print_indented(console, Text.assemble(("note ", "yellow"), _NOISY), 0)
    if load := report.settings.get("load before"):
        print_indented(console, Text.assemble(("note ", "yellow"), _BUSY.format(load)), 0)
    for note in dict.fromkeys(n for m in report.measurements for n in m.notes):
        console.print(f"[yellow]note[/] {escape(note)}", soft_wrap=True, highlight=False)
    for error in report.errors:
        console.print(f"[bold red]✗[/] {escape(error)}", soft_wrap=True, highlight=False)


def _show_crossovers(console: Console, crossovers: Sequence[Crossover]) -> None:
    """Print the fastest kernel by size."""
    for found in crossovers:
        use = "calls use this from now on" if found.stored else "run opwright tune to use this in calls"
        console.print(
            f"[bold]{escape(found.op)}[/] {found.dtype} [dim]on {escape(found.device_name)}[/]: the fastest by size "
            f"[dim]({use})[/]",
            soft_wrap=True,
            highlight=False,
        )
        for size_range in found.ranges:
            console.print(f"  {escape(size_range.kernel):<20} {size_range}", highlight=False)
        console.print()


# A time whose interval is wider than half of it to each side tells nothing.
_TELLING = 0.5
_BUSY = "the machine was busy when this began (load {}): verdicts may be wrong; repeat this when it is not"
_NOISY = "noisy: the repetitions differ by more than half of the time; close other programs, or time larger sizes"


def _tables(measured: Sequence[Measurement], width: int) -> Iterator[Table]:
    """A row for each case and kernel, cold and warm side by side. Columns that do not fit beside the others are in
    further tables with the same rows."""
    rows: dict[tuple[str, str], dict[str, Measurement]] = {}
    for m in measured:
        rows.setdefault((_case_text(m.case), m.kernel), {})[m.cache] = m
    columns = _columns(list(dict.fromkeys(name for m in measured for name in m.comparisons)))
    cells = {name: [of(by_cache) for by_cache in rows.values()] for name, of in columns.items()}
    cells = {name: texts for name, texts in cells.items() if any(texts)}
    longest = [max(map(cell_len, texts)) for texts in zip(("case", "kernel"), *rows, strict=True)]
    used = room = min(sum(longest) + 2, width // 2)  # longer ones continue in a second line
    block: list[str] = []
    for name, texts in cells.items():
        needed = 2 + max(Text.from_markup(text).cell_len for text in (name, *texts))
        if block and used + needed > width:
            yield _table(rows, block, cells)
            block, used = [], room
        block.append(name)
        used += needed
    yield _table(rows, block, cells)


def _columns(baselines: Sequence[str]) -> dict[str, Callable[[dict[str, Measurement]], str]]:
    """The text of each column for the measurements of a row, by the state of the cache."""

    def shown(row: dict[str, Measurement]) -> Measurement:
        return row.get("cold") or row["warm"]

    def rate(m: Measurement) -> str:
        return f"{m.bytes / m.time_us.median / 1e3:.0f}" if m.direction == "forward" else ""

    def fraction(m: Measurement) -> str:
        return f"{m.roofline_fraction:.0%}" if m.roofline_fraction is not None else ""

    return {
        "cold µs": lambda row: _time_text(row.get("cold")),
        "warm µs": lambda row: _time_text(row.get("warm")),
        "call µs": lambda row: f"{(row.get('warm') or shown(row)).host_us.median:.1f}",
        "GB/s": lambda row: rate(shown(row)),
        "of limit": lambda row: fraction(shown(row)),
        **{f"vs {b}": lambda row, b=b: _versus_text(shown(row).comparisons.get(b)) for b in baselines},  # type: ignore[misc]
    }


def _table(rows: Collection[tuple[str, str]], columns: Sequence[str], cells: Mapping[str, Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("case", overflow="fold")
    table.add_column("kernel", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    last = ""
    for number, (case, kernel) in enumerate(rows):
        texts = (cells[column][number] for column in columns)
        table.add_row("" if case == last else escape(case), escape(kernel), *texts)
        last = case
    return table


def _case_text(case: Mapping[str, Any]) -> str:
    shown = {k: "x".join(map(str, v)) if isinstance(v, list | tuple) else v for k, v in case.items() if k != "dtype"}
    return " ".join([*(f"{k}={v}" for k, v in shown.items()), str(case.get("dtype", ""))])


def _time_text(m: Measurement | None) -> str:
    if m is None:
        return ""
    spread = _spread(m)
    return f"{m.time_us.median:.1f} {f'±{spread:.0%}' if spread <= _TELLING else 'noisy'}"


def _spread(m: Measurement) -> float:
    """Half of the time's interval, as a share of it."""
    t = m.time_us
    return (t.hi - t.lo) / 2 / t.median if t.median else 0.0


def _versus_text(found: Comparison | None) -> str:
    if found is None:
        return ""
    return f"[{COMPARISON_STYLES[found.verdict]}]{found.verdict}[/] {found.ratio:.2f}"


def show_regressions(console: Console, regressions: Sequence[str]) -> None:
    """Print the kernels that became slower."""
    for regression in regressions:
        console.print(f"[bold red]slower[/] {escape(regression)}", soft_wrap=True, highlight=False)
