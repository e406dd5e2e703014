"""``opwright port``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opwright.cli.common import FAILED, NOTHING_RAN, PASSED, Json, Verbose, console, refuse_files, write_records

__all__ = ["port"]


def port(
    source: Annotated[Path, typer.Argument(help="A C++ or CUDA source on at::Tensor.", metavar="FILE")],
    op: Annotated[
        str | None,
        typer.Option(
            help="A file or module with the operator that the source computes, to compare both.", metavar="TARGET"
        ),
    ] = None,
    entry: Annotated[
        str | None, typer.Option(help="The host function to attach to TARGET's operator, if it has no such kernel.")
    ] = None,
    include: Annotated[
        list[Path] | None, typer.Option("-I", "--include", help="A folder of its headers (repeatable).")
    ] = None,
    options: Annotated[list[str] | None, typer.Option("--option", help="A compiler flag (repeatable).")] = None,
    check: Annotated[bool, typer.Option(help="With --op, also check both kernels.")] = True,
    verbose: Verbose = False,
    json: Json = None,
) -> None:
    """Rewrite a source on ATen's tensors for torch's stable ABI, in new files beside it. Compare both.

    Exits with 1 if you must finish something by hand, or if the results of both differ. Exits with 3 if they cannot run
    on this machine.
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
    if not report.is_complete:
        raise typer.Exit(FAILED)
    raise typer.Exit(PASSED if report.was_compared else NOTHING_RAN)
