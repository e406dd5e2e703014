"""Progress displays: live on a terminal, a few lines on a plain stream."""

from __future__ import annotations

import threading
from collections import Counter

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from opwright.results import Status, Verdict

__all__ = ["CheckProgress", "TaskLine"]


class CheckProgress:
    """The progress of a check: on a terminal, a bar and each worker's step; on a plain stream, a line for each kernel.

    The first failure of each kernel is shown as soon as it is found; the report has all of them, with simpler cases.
    Compilations are shown only here: on a terminal while they run, on a plain stream as a number after the kernel.
    ``verbose`` prints each of their messages, once.
    """

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._lock = threading.Lock()
        self._doing: dict[str, str] = {}
        self._compiled: Counter[str] = Counter()
        self._shown: set[str] = set()
        self._failing: set[str] = set()
        self._total = self._done = 0
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

    def plan(self, kernels: int) -> None:
        """Add a number of kernels to the total."""
        self._total += kernels
        self._bar.update(self._task, total=self._total)

    def step(self, task: object, what: str) -> None:
        """Show a worker's current step."""
        if what.startswith("found "):
            self._show_failure(str(task), what.removeprefix("found "))
            return
        takes_time = what.startswith(("compiling", "waiting"))
        with self._lock:
            self._doing[str(task)] = what
            self._compiled[str(task)] += what.startswith("compiling")
            is_new = what not in self._shown
            self._shown.add(what)
        if takes_time and is_new and self._verbose:
            self._console.print(f"[dim]opwright: {escape(what)}[/]", soft_wrap=True, highlight=False)

    def _show_failure(self, task: str, what: str) -> None:
        with self._lock:
            is_first = task not in self._failing
            self._failing.add(task)
        if is_first:
            line = f"✗ {task}: {what} (the check goes on)"
            self._console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)

    def on_message(self, what: str) -> None:
        """Show a step other than a check, on a terminal only."""
        self.step("also", what)

    def done(self, verdict: Verdict, note: str = "") -> None:
        """Show a kernel's verdict, followed by ``note``."""
        task = f"{verdict.op} {verdict.kernel} on {verdict.device}"
        with self._lock:
            self._doing.pop(task, None)
            compiled = self._compiled.pop(task, 0)
            self._done += 1
            number = self._done
        self._bar.update(self._task, advance=1)
        if not self._console.is_terminal:
            self._console.print(
                self._line(verdict, task, number, compiled, note), markup=False, highlight=False, soft_wrap=True
            )

    def _line(self, verdict: Verdict, task: str, number: int, compiled: int, note: str) -> str:
        count = f"{number:>{len(str(self._total))}}/{self._total} " if self._total else ""
        times = "compiled once" if compiled == 1 else f"compiled {compiled} times" if compiled else ""
        seconds = f"{verdict.seconds:.1f} s" if verdict.status is not Status.REFUSED else ""
        return ", ".join(filter(None, (f"{count}{verdict.status.upper():<7} {task}", seconds, times, note)))


class TaskLine:
    """One line with the current step; on a plain stream only long steps are printed, each once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: set[str] = set()
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

    def on_message(self, what: str) -> None:
        """Replace the line."""
        self._progress.update(self._task, description=escape(what))
        takes_time = what.startswith(("measuring", "compiling", "waiting"))
        if takes_time and what not in self._shown and not self._console.is_terminal:
            self._shown.add(what)
            self._console.print(f"opwright: {what}", markup=False, soft_wrap=True, highlight=False)
