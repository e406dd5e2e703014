"""What the commands share: exit codes, options that several take, where output and records go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["FAILED", "NOTHING_RAN", "PASSED", "WRONG_CALL", "Html", "Json", "Targets", "console", "write_records"]

PASSED, FAILED, WRONG_CALL, NOTHING_RAN = 0, 1, 2, 3

Targets = Annotated[list[str], typer.Argument(help="A file, a module, or either with :operator.", metavar="TARGET...")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the records to FILE.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a report page to FILE.")]


def write_records(record: dict[str, Any], json: Path | None, html: Path | None) -> None:
    from opwright.report.records import write_json, write_text

    if json is not None:
        write_json(record, json)
    if html is not None:
        from opwright.report.html import render

        write_text(render([record]), html)


def console(**options: Any) -> Console:
    from opwright.report.terminal import make_console

    return make_console(**options)
