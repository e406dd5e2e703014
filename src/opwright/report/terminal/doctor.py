"""The output of ``opwright doctor``: the machine, and which languages it can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from opwright.results import Accepted, Probe, Refused

__all__ = ["show_doctor"]


def show_doctor(
    console: Console,
    machine: Mapping[str, Any],
    backends: Mapping[str, Probe],
    fast_calls: Probe,
    missing: Sequence[str] = (),
) -> None:
    """Print the machine's properties; each language, accepted or refused with the remedy; whether calls are fast; and a
    line for each name of torch or Triton that is missing."""
    properties = Table(box=None, pad_edge=False, show_header=False)
    properties.add_column(style="bold")
    properties.add_column()
    for name, value in machine.items():
        properties.add_row(name.replace("_", " "), escape(_fact(value)))
    console.print(properties)
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("language or feature", "", "how, or what to do"):
        table.add_column(column)
    for name, probe in {**backends, "fast calls": fast_calls}.items():
        match probe:
            case Accepted(note=note):
                table.add_row(name, "[bold green]ready[/]", escape(note))
            case Refused(reason=reason, remedy=remedy):
                table.add_row(
                    name, "[yellow]not available[/]", escape(reason) + (f"\n→ {escape(remedy)}" if remedy else "")
                )
    console.print(table)
    if missing:
        console.print("\n[bold]what this torch or Triton lacks, and the fallback[/]")
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
