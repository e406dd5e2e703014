"""Shared by the commands: exit codes, common options, and functions that write records."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import opwright
from opwright.errors import OpwrightError

if TYPE_CHECKING:
    from rich.console import Console

    from opwright.results import CheckReport

__all__ = [
    "FAILED", "INTERRUPTED", "NOTHING_RAN", "PASSED", "UNFINISHED", "WRONG_CALL", "Html", "Json", "Level", "Targets",
    "Verbose", "console", "exit_code", "log_to", "refuse_files", "write_records",
]  # fmt: skip

PASSED, FAILED, WRONG_CALL, NOTHING_RAN, UNFINISHED, INTERRUPTED = 0, 1, 2, 3, 4, 130

Targets = Annotated[
    list[str], typer.Argument(help="A file or a module, or one operator of it: saxpy.py:saxpy.", metavar="TARGET...")
]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the records to FILE.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a report page to FILE.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="List every kernel and check, and print a line for each compilation.")
]


class Level(StrEnum):
    """How thorough a check is."""

    smoke = "smoke"
    quick = "quick"
    full = "full"


def refuse_files(json: Path | None, html: Path | None, *others: Path | None) -> None:
    """Raise OpwrightError now if records cannot be written to these files, or if that would destroy another file."""
    from opwright.report.files import refuse_unwritable

    refuse_unwritable(json, html, *others)
    if json is not None and html is not None and json.resolve() == html.resolve():
        raise OpwrightError(f"--json and --html must name two files, got {json} twice", fix="name another file")
    for option, file, beginning in (("--json", json, b"{"), ("--html", html, b"<")):
        if file is not None and file.is_file() and file.read_bytes()[:1] not in (b"", beginning):
            raise OpwrightError(f"{option} must name a new file or a report, got {file}", fix="name another file")


def write_records(record: dict[str, Any], json: Path | None, html: Path | None, *others: dict[str, Any]) -> None:
    """Write a record to a file, and a page of it and of others; with the command that made them."""
    from opwright.report.files import write_json, write_text
    from opwright.report.records import with_command

    record = with_command(record, opwright.__version__, ["opwright", *sys.argv[1:]])
    if json is not None:
        write_json(record, json)
    if html is not None:
        from opwright.report.html import render

        write_text(render([record, *others]), html)


def exit_code(report: CheckReport, *, strict: bool = False) -> int:
    """The exit code of a check; ``strict`` counts warnings and thin coverage as failures."""
    from opwright.results import Status

    if report.partial:
        return INTERRUPTED
    found = {v.status for v in report.verdicts}
    if found & ({Status.FAIL, Status.THIN, Status.WARNING} if strict else {Status.FAIL}):
        return FAILED
    if Status.INCONCLUSIVE in found:
        return UNFINISHED
    return PASSED if report.ran_anything else NOTHING_RAN


@contextlib.contextmanager
def log_to(on_message: Callable[[str], None]) -> Iterator[None]:
    """Pass opwright's log messages in this process ("compiling …") to a progress display instead of stderr."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            on_message(record.getMessage())

    logger = logging.getLogger("opwright")
    handlers, propagate, level = logger.handlers, logger.propagate, logger.level
    logger.handlers, logger.propagate = [Handler()], False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def console(**options: Any) -> Console:
    from opwright.report.terminal.console import make_console

    return make_console(**options)
