"""``opwright selftest``."""

from __future__ import annotations

from typing import Annotated

import typer

from opwright.cli.common import (
    FAILED,
    INTERRUPTED,
    PASSED,
    UNFINISHED,
    Json,
    Verbose,
    console,
    refuse_files,
    write_records,
)
from opwright.cli.sweep import Ray, Resume, say, sweep
from opwright.sweep.events import Events

__all__ = ["selftest"]


def selftest(
    device: Annotated[str, typer.Option(help="cpu, which simulates kernels for a GPU, or cuda.")] = "cpu",
    jobs: Annotated[int | None, typer.Option(help="How many kernels to check at a time.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this file of the catalogue (repeatable).")] = None,
    ray: Ray = None,
    resume: Resume = None,
    verbose: Verbose = False,
    json: Json = None,
) -> None:
    """Check kernels with seeded faults, and show which faults this installation catches."""
    from opwright.planted.catalogue import FILES
    from opwright.planted.run import selftest as run
    from opwright.report.terminal.progress import TaskLine
    from opwright.report.terminal.selftest import show_selftest

    refuse_files(json, None)
    if unknown := [name for name in only or () if name not in FILES]:
        raise typer.BadParameter(f"the file must be one of {', '.join(FILES)}, got {unknown[0]!r}")
    with sweep(ray, resume, jobs) as where, TaskLine(console(stderr=True)) as line:
        found = run(
            only or FILES,
            device=device,
            jobs=jobs,
            events=Events(finished=lambda result: line.on_message(result.defect), resumed=say),
            **where.options(),
        )
    write_records(found.to_json(), json, None)
    show_selftest(console(), found, verbose=verbose)
    if found.partial:
        raise typer.Exit(INTERRUPTED)
    if found.passed:
        raise typer.Exit(PASSED)
    raise typer.Exit(FAILED if found.missed or found.false_alarms or not found.lost else UNFINISHED)
