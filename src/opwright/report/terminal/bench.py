"""The output of ``opwright bench``: times with their spread, comparisons, and the fastest kernel by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

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
        console.print(_bench_table(measured))
        console.print()
    _show_crossovers(console, report.crossovers)
    if report.settings:
        settings = ", ".join(f"{name}: {value}" for name, value in report.settings.items())
        console.print(f"[dim]the same for all: {escape(settings)}[/]", soft_wrap=True, highlight=False)
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


def _bench_table(measured: Sequence[Measurement]) -> Table:
    """A row for each case and kernel; cold and warm side by side."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    baselines = list(dict.fromkeys(name for m in measured for name in m.comparisons))
    table.add_column("case")
    table.add_column("kernel")
    for column in ("cold µs", "warm µs", "call µs", "GB/s", "of limit", *(f"vs {b}" for b in baselines)):
        table.add_column(column, justify="right", no_wrap=True)
    rows: dict[tuple[str, str], dict[str, Measurement]] = {}
    for m in measured:
        rows.setdefault((_case_text(m.case), m.kernel), {})[m.cache] = m
    last = ""
    for (case, kernel), by_cache in rows.items():
        cold, warm = by_cache.get("cold"), by_cache.get("warm")
        shown = cold or warm
        assert shown is not None  # every row has a measurement
        table.add_row(
            "" if case == last else escape(case),
            escape(kernel),
            _time_text(cold),
            _time_text(warm),
            f"{(warm or shown).host_us.median:.1f}",
            f"{shown.bytes / shown.time_us.median / 1e3:.0f}" if shown.direction == "forward" else "",
            f"{shown.roofline_fraction:.0%}" if shown.roofline_fraction is not None else "",
            *(_versus_text(shown.comparisons.get(b)) for b in baselines),
        )
        last = case
    return table


def _case_text(case: Mapping[str, Any]) -> str:
    shown = {k: "x".join(map(str, v)) if isinstance(v, list | tuple) else v for k, v in case.items() if k != "dtype"}
    return " ".join([*(f"{k}={v}" for k, v in shown.items()), str(case.get("dtype", ""))])


def _time_text(m: Measurement | None) -> str:
    if m is None:
        return ""
    t = m.time_us
    spread = (t.hi - t.lo) / 2 / t.median if t.median else 0.0
    return f"{t.median:.1f} ±{spread:.0%}"


def _versus_text(found: Comparison | None) -> str:
    if found is None:
        return ""
    return f"[{COMPARISON_STYLES[found.verdict]}]{found.verdict}[/] {found.ratio:.2f}"


def show_regressions(console: Console, regressions: Sequence[str]) -> None:
    """Print the kernels that became slower."""
    for regression in regressions:
        console.print(f"[bold red]slower[/] {escape(regression)}", soft_wrap=True, highlight=False)
