"""Tables and progress on a terminal; plain text where there is none."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from opwright.results import (
    Accepted,
    BenchReport,
    CheckReport,
    Comparison,
    ComparisonVerdict,
    Crossover,
    Measurement,
    Part,
    Probe,
    Refused,
    Shown,
    Status,
    Verdict,
)

__all__ = ["CheckProgress", "make_console", "show_bench", "show_check", "show_doctor", "show_parts"]


def make_console(**options: Any) -> Console:
    """A console for our tables. Emoji codes are off: ``op:b:`` is a kernel's name here, not a letter in a box."""
    return Console(**{"soft_wrap": False, "emoji": False, **options})


_STYLES = {Status.PASS: "bold green", Status.FAIL: "bold red", Status.REFUSED: "yellow"}
_ORIGINS = {"derived": "cyan", "custom": "green", "missing": "red"}


def show_check(console: Console, report: CheckReport) -> None:
    """The verdict table, then each failure with its smallest case, then what was not checked."""
    console.print(_verdict_table(report.verdicts))
    for verdict in report.verdicts:
        _show_failures(console, verdict)
    console.print()
    _show_not_checked(console, report.verdicts)
    _show_refused(console, report.verdicts)
    counts = {s: sum(v.status is s for v in report.verdicts) for s in Status}
    families = list(dict.fromkeys(f.check for v in report.verdicts for f in v.findings))
    if families:
        console.print(f"[dim]checks: {escape(', '.join(families))}[/]")
    told = [f"[{_STYLES[s]}]{n} {_WORDS[s]}[/]" for s, n in counts.items() if n]
    console.print(", ".join(told) or "nothing to check")


_WORDS = {Status.PASS: "passed", Status.FAIL: "failed", Status.REFUSED: "cannot run here"}


def _verdict_table(verdicts: Sequence[Verdict]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("kernel", "language", "device", "verdict", ""):
        table.add_column(column, no_wrap=column != "")
    table.add_column("s", justify="right")
    last = ""
    for v in verdicts:
        if v.op != last:
            table.add_row(f"[bold]{escape(v.op)}[/]")
            last = v.op
        seconds = f"{v.seconds:.1f}" if v.status is not Status.REFUSED else ""
        table.add_row(
            f"  {escape(v.kernel)}",
            v.backend,
            v.device,
            Text(v.status.upper(), _STYLES[v.status]),
            _summary(v),
            seconds,
        )
    return table


def _summary(verdict: Verdict) -> str:
    if verdict.failures:
        return f"[red]{escape(', '.join(f.check for f in verdict.failures))}[/]"
    if verdict.status is Status.REFUSED:
        return "[dim]see below[/]"
    return f"[dim]{escape(verdict.reason)}[/]"


def _show_failures(console: Console, verdict: Verdict) -> None:
    for finding in verdict.failures:
        console.print()
        console.print(
            f"[bold red]✗[/] [bold]{escape(verdict.op)}[/] {escape(verdict.kernel)} on {verdict.device}: "
            f"{escape(finding.check)}"
        )
        if finding.case:
            console.print(f"  smallest failing case: {escape(finding.case)}")
        for line in finding.message.splitlines():
            console.print(f"  {escape(line)}", soft_wrap=True, highlight=False)
        if finding.reproduce:
            console.print(f"  [dim]again:[/] {escape(finding.reproduce)}", soft_wrap=True, highlight=False)


def _show_not_checked(console: Console, verdicts: Sequence[Verdict]) -> None:
    """What no check looked at, with the kernels that share the reason on one line."""
    groups: dict[str, tuple[list[str], list[str]]] = {}
    for v in verdicts:
        for item in v.not_checked if v.status is not Status.REFUSED else ():
            checks, kernels = groups.setdefault(item.why, ([], []))
            checks.append(item.check)
            kernels.append(f"{v.op}:{v.kernel}")
    if not groups:
        return
    console.print("[bold]not checked[/]")
    for why, (checks, kernels) in groups.items():
        console.print(
            f"  {_each_once(checks)}: {escape(why)} [dim]({_each_once(kernels)})[/]", soft_wrap=True, highlight=False
        )
    console.print()


def _each_once(words: Iterable[str]) -> str:
    return escape(", ".join(dict.fromkeys(words)))


def _show_refused(console: Console, verdicts: Sequence[Verdict]) -> None:
    groups: dict[str, list[str]] = {}
    for v in verdicts:
        if v.status is Status.REFUSED:
            groups.setdefault(v.reason, []).append(f"{v.op}:{v.kernel}")
    if not groups:
        return
    console.print("[bold]cannot run here[/]")
    for reason, kernels in groups.items():
        console.print(f"  {_each_once(kernels)}: {escape(reason)}", soft_wrap=True, highlight=False)
    console.print()


def show_bench(console: Console, report: BenchReport) -> None:
    """One table an operator and direction: time with its interval, what it means, and who is faster."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for m in report.measurements:
        groups.setdefault((m.op, m.direction), []).append(m)
    for (op, direction), measured in groups.items():
        console.print(f"[bold]{escape(op)}[/] {direction} [dim]on {measured[0].device}[/]")
        console.print(_bench_table(measured))
        console.print()
    _show_crossovers(console, report.crossovers)
    if report.settings:
        told = ", ".join(f"{name}: {value}" for name, value in report.settings.items())
        console.print(f"[dim]the same for all: {escape(told)}[/]", soft_wrap=True, highlight=False)
    for note in dict.fromkeys(n for m in report.measurements for n in m.notes):
        console.print(f"[yellow]note[/] {escape(note)}", soft_wrap=True, highlight=False)
    for error in report.errors:
        console.print(f"[bold red]✗[/] {escape(error)}", soft_wrap=True, highlight=False)


def _show_crossovers(console: Console, crossovers: Sequence[Crossover]) -> None:
    """Which kernel is the fastest at which sizes."""
    for found in crossovers:
        kept = "calls follow this from now on" if found.stored else "opwright tune makes calls follow this"
        console.print(
            f"[bold]{escape(found.op)}[/] {found.dtype} [dim]on {escape(found.device_name)}[/]: the fastest by size "
            f"[dim]({kept})[/]",
            soft_wrap=True,
            highlight=False,
        )
        for interval in found.ranges:
            console.print(f"  {escape(interval.kernel):<20} {interval}", highlight=False)
        console.print()


_VERSUS = {
    ComparisonVerdict.FASTER: "green",
    ComparisonVerdict.SLOWER: "red",
    ComparisonVerdict.SAME: "cyan",
    ComparisonVerdict.UNCLEAR: "yellow",
}


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
        assert shown is not None  # a row exists because something was measured
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
    return f"[{_VERSUS[found.verdict]}]{found.verdict}[/] {found.ratio:.2f}"


def show_doctor(
    console: Console, machine: Mapping[str, Any], backends: Mapping[str, Probe], missing: Sequence[str] = ()
) -> None:
    """What this machine is, and for each language: accepted, or why not and what to do; then a line for each name of
    torch's and Triton's that is missing."""
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(style="bold")
    facts.add_column()
    for name, value in machine.items():
        facts.add_row(name.replace("_", " "), escape(_fact(value)))
    console.print(facts)
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("language", "", "how, or what to do"):
        table.add_column(column)
    for name, probe in backends.items():
        match probe:
            case Accepted(note=note):
                table.add_row(name, "[bold green]ready[/]", escape(note))
            case Refused(reason=reason, remedy=remedy):
                table.add_row(name, "[yellow]not here[/]", escape(reason) + (f"\n→ {escape(remedy)}" if remedy else ""))
    console.print(table)
    if missing:
        console.print("\n[bold]what this torch or Triton lacks, and what happens without it[/]")
    for line in missing:
        console.print(f"  [yellow]{escape(line)}[/]", soft_wrap=True, highlight=False)


def _fact(value: Any) -> str:
    if value in (None, (), []):
        return "none"
    if isinstance(value, tuple | list):
        return ", ".join(
            f"{v['name']} (sm_{v['capability'][0]}{v['capability'][1]})" if isinstance(v, dict) else str(v)
            for v in value
        )
    return str(value)


def show_parts(console: Console, op: str, schema: str, parts: Iterable[Part]) -> None:
    """An operator's schema, and where each of its parts comes from."""
    console.print(f"[bold]{escape(op)}[/]{escape(schema)}", soft_wrap=True, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("part", "", "how"):
        table.add_column(column)
    for part in parts:
        table.add_row(part.name, f"[{_ORIGINS[part.origin]}]{part.origin}[/]", escape(part.how))
    console.print(table)


@contextlib.contextmanager
def paged(console: Console, lines: int) -> Iterator[None]:
    """A pager around what is longer than the terminal is high; nothing where there is no terminal."""
    if not console.is_terminal or not sys.stdout.isatty() or lines <= console.height:
        yield
        return
    with console.pager(styles=True):
        yield


def show_text(console: Console, of: str, shown: Shown) -> None:
    """A kernel's source or compiled code, coloured where there is a terminal."""
    console.print(f"[bold]{escape(of)}[/]  [dim]{escape(shown.title)}[/]", soft_wrap=True, highlight=False)
    lexer = {"sass": "nasm", "asm": "nasm"}.get(shown.language, shown.language)
    if console.is_terminal and lexer != "text":
        console.print(Syntax(shown.text, lexer, theme="ansi_dark", background_color="default", word_wrap=False))
    else:
        console.print(shown.text, markup=False, highlight=False, soft_wrap=True)
    console.print()


class CheckProgress:
    """A progress bar with what each worker does; on a plain stream, a line for each verdict and notice."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._doing: dict[Any, str] = {}
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("checking"),
            BarColumn(24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task("", total=None)
        self._live = Live(get_renderable=self._render, console=console, transient=True, refresh_per_second=8)

    def __enter__(self) -> CheckProgress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def _render(self) -> Table:
        grid = Table.grid(padding=(0, 1))
        grid.add_row(self._bar)
        with self._lock:
            for task, what in self._doing.items():
                grid.add_row(Text(f"  {task}: {what}", style="dim", overflow="ellipsis", no_wrap=True))
        return grid

    def step(self, task: object, what: str) -> None:
        """A worker does something; a compile is worth a line of its own, since it takes time."""
        with self._lock:
            self._doing[task] = what
        if what.startswith(("compiling", "waiting")):
            self._console.print(f"[dim]opwright: {escape(what)}[/]", soft_wrap=True, highlight=False)

    def done(self, verdict: Verdict, total: int | None = None) -> None:
        """A kernel's verdict is there."""
        with self._lock:
            gone = [t for t in self._doing if str(t) == f"{verdict.op} {verdict.kernel} on {verdict.device}"]
            for task in gone:
                del self._doing[task]
        self._bar.update(self._task, advance=1, total=total)
        if not self._console.is_terminal:
            self._console.print(
                f"{verdict.status.upper():<8} {verdict.op} {verdict.kernel} on {verdict.device}", highlight=False
            )


def show_regressions(console: Console, regressions: Sequence[str]) -> None:
    """What became slower than it was."""
    for told in regressions:
        console.print(f"[bold red]slower[/] {escape(told)}", soft_wrap=True, highlight=False)


class TaskLine:
    """One line that says what is being done; on a plain stream nothing, but for what takes long."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> TaskLine:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def say(self, what: str) -> None:
        """Replace the line."""
        self._progress.update(self._task, description=escape(what))
        if what.startswith("measuring"):
            self._console.print(f"[dim]opwright: {escape(what)}[/]", soft_wrap=True, highlight=False)
