"""``opwright port``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opwright.cli.common import FAILED, PASSED, Json, Verbose, console, refuse_files, write_records

__all__ = ["port"]


def port(
    source: Annotated[Path, typer.Argument(help="A C++ or CUDA source on at::Tensor.", metavar="FILE")],
    op: Annotated[
        str | None,
        typer.Option(help="A file or module with operators to compare and check it with.", metavar="TARGET"),
    ] = None,
    entry: Annotated[
        str | None, typer.Option(help="The host function to attach to TARGET's operator, if it has no such kernel.")
    ] = None,
    include: Annotated[
        list[Path] | None, typer.Option("-I", "--include", help="A folder of its headers (repeatable).")
    ] = None,
    options: Annotated[list[str] | None, typer.Option("--option", help="A compiler flag (repeatable).")] = None,
    check: Annotated[bool, typer.Option(help="With --op, also run the checks of both kernels.")] = True,
    verbose: Verbose = False,
    json: Json = None,
) -> None:
    """Rewrite a source on ATen's tensors for torch's stable ABI, into files beside it, and compare the two.

    Exits with 1 if something remains to be done by hand, or if the new kernel differs from the original.
    """
    from opwright.port.run import port as run_port
    from opwright.report.terminal.port import show_port
    from opwright.report.terminal.progress import TaskLine

    refuse_files(json, None)
    with TaskLine(console(stderr=True)) as line:
        report = run_port(
            source, include=include or (), options=options or (), target=op, entry=entry, check=check,
            on_step=line.on_message,
        )  # fmt: skip
    show_port(console(), report, verbose=verbose)
    write_records(report.to_json(), json, None)
    raise typer.Exit(PASSED if report.is_complete else FAILED)
