"""The screen of ``opwright watch``: each kernel's verdict, the smallest failing case, and times with their change."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from opwright.report.statuses import LOOKS
from opwright.results import Status

__all__ = ["WatchScreen"]

_MOST_LINES = 14


class WatchScreen:
    """What is known of the kernels, from the records of passes (``watching/once.py``)."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: dict[str, dict[str, Any]] = {}
        self._findings: dict[str, dict[str, Any]] = {}
        self._error, self._state = "", "starting"
        self._live = Live(get_renderable=self.render, console=console, refresh_per_second=10, auto_refresh=True)

    def __enter__(self) -> WatchScreen:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def on_event(self, event: dict[str, Any]) -> None:
        """Take one record."""
        kind, kernel = event["event"], event.get("kernel", "")
        if kind == "start":
            self._rows = {name: self._rows.get(name, {}) for name in event["kernels"]}
            for name in event["changed"]:
                self._rows[name] = {"times": self._rows[name].get("times", "")}
            self._findings, self._error, self._state = {}, "", "checking"
        elif kind == "verdict":
            self._rows.setdefault(kernel, {}).update(event)
            if event["stage"] == "full":
                self._findings = {i: f for i, f in self._findings.items() if f["kernel"] != kernel}
        elif kind == "finding":
            self._findings[event["id"]] = {**event, "kernel": _kernel_of(event)}
        elif kind == "time":
            self._rows.setdefault(kernel, {})["times"] = _time_text(event)
        elif kind == "error":
            self._error = event["message"]
        elif kind == "end":
            self._state = f"done {time.strftime('%H:%M:%S')}, {event['seconds']:.1f} s"
        self._live.refresh()

    def render(self) -> RenderableType:
        """The screen, at most as wide as the terminal."""
        table = Table.grid(padding=(0, 2))
        for name, row in self._rows.items():
            status = Status(row["status"]) if "status" in row else None
            look = (
                Text("…", style="dim") if status is None else Text(f"{status.mark} {status.word}", LOOKS[status].style)
            )
            since = Text(_since_text(row), style="dim")
            table.add_row(Text(name), Text(row.get("device", "")), look, since, Text(row.get("times", "")))
        parts: list[RenderableType] = [table]
        if self._error:
            parts.append(Text(self._error, style="red"))
        parts += [self._shown(finding) for finding in list(self._findings.values())[:1]]
        parts.append(Text(f"{self._state} · {len(self._findings)} findings · Ctrl-C ends", style="dim"))
        return Group(*parts)

    def _shown(self, finding: dict[str, Any]) -> Text:
        lines = [f"{finding['title']}", f"{finding['file']}:{finding['line']}", *finding["message"].splitlines()]
        return Text("\n".join(["", *lines[:_MOST_LINES], ""]), overflow="fold")


def _since_text(row: dict[str, Any]) -> str:
    """When a kernel's verdict was there, from the start of the pass; none if it did not change."""
    return f"{row['seconds']:.2f} s" if row.get("stage") in ("first", "full") else ""


def _kernel_of(finding: dict[str, Any]) -> str:
    op, kernel = finding["title"].split(" on ")[0].rsplit(" ", 1)
    return f"{op}:{kernel}"


def _time_text(event: dict[str, Any]) -> str:
    change = "" if event["change"] is None else f" {100 * event['change']:+.0f} %"
    return f"{event['us']:,.1f} µs{change}"
