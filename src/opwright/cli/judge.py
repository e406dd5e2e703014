"""``opwright judge``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opwright.cli.common import (
    FAILED,
    INTERRUPTED,
    NOTHING_RAN,
    PASSED,
    UNFINISHED,
    WRONG_CALL,
    Html,
    Json,
    Verbose,
    console,
    refuse_files,
    write_records,
)
from opwright.cli.development.on_lines import Sarif, ShownAs, write_on_lines
from opwright.cli.sweep import Ray, Resume, say, sweep
from opwright.errors import OpwrightError
from opwright.sweep.events import Events

if TYPE_CHECKING:
    from opwright.results.judged import JudgeReport

__all__ = ["FORMATS", "judge"]

# Their table is in a package that imports torch.
FORMATS = (
    "pair, backendbench, tritonbench, gpu-mode, kernelbench.com, kernelbench, robust-kbench, sol-execbench, "
    "flashinfer-bench"
)


def judge(
    paths: Annotated[
        list[str], typer.Argument(help="Files and folders with candidates, or ref.py:fn cand.py:fn.", metavar="PATH...")
    ],
    format: Annotated[str, typer.Option(help=f"The format, if it is not recognised: {FORMATS}.")] = "",
    references: Annotated[
        Path | None, typer.Option(help="The folder of references, if they are not beside the candidates.")
    ] = None,
    write_contract: Annotated[
        Path | None, typer.Option(help="Write each inferred contract as a Python file into this folder.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Only this device: cpu, cuda, or cpu-sim (the simulator).")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one step of a check may take.")] = 60.0,
    sandbox: Annotated[
        str, typer.Option(help="Confine candidates: on, off, or auto (on where the system allows it).")
    ] = "auto",
    memory: Annotated[
        float | None, typer.Option(help="GiB that a candidate may take: by default its part of most of what is free.")
    ] = None,
    times: Annotated[
        bool, typer.Option("--times", help="Time candidates that are right, beside the reference and torch.compile.")
    ] = False,
    max_autotune: Annotated[
        bool, typer.Option("--max-autotune", help="As --times, and beside torch.compile's max-autotune: slow.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(help="How many kernels to check at a time.")] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="End a kernel's check at its first failure.")] = False,
    ray: Ray = None,
    resume: Resume = None,
    write_results: Annotated[
        Path | None, typer.Option(help="Write the format's own file of results, such as eval_results.json.")
    ] = None,
    verbose: Verbose = False,
    json: Json = None,
    html: Html = None,
    sarif: Sarif = None,
    annotations: ShownAs = None,
) -> None:
    """Check kernels in the form in which others publish them."""
    from opwright.report.on_lines.located import located_candidates
    from opwright.report.terminal.judged import show_judged
    from opwright.report.terminal.progress import CheckProgress
    from opwright.workers.spawn import prefork

    refuse_files(json, html, sarif, write_results)
    if write_results is not None and write_results.exists():
        raise OpwrightError(f"--write-results must name a new file, got {write_results}", fix="name another file")
    if ray is None:
        prefork()  # before this process imports torch
    with sweep(ray, resume, jobs) as where, CheckProgress(console(stderr=True), verbose=verbose) as progress:
        from opwright.judged.run import judge as run

        report = run(
            *paths,
            format=format,
            references=references,
            write_contract=write_contract,
            device=device,
            timeout=timeout,
            sandbox=sandbox,
            memory=memory,
            times=times,
            max_autotune=max_autotune,
            jobs=jobs,
            fail_fast=fail_fast,
            events=Events(progress.plan, progress.step, progress.done, say),
            **where.options(),
        )
    record = report.to_json()
    files = (
        lambda: write_records(record, json, None),  # first, as there may be no terminal any more
        lambda: write_records(record, None, html),
        lambda: show_judged(console(), report, verbose=verbose),
        lambda: write_on_lines(lambda: located_candidates(report), sarif, annotations),
        lambda: _write_results(report, write_results),
    )
    unwritten = [wrong for write in files if (wrong := _what_went_wrong(write))]
    unwritten += [f"{report.unwritten}; a later run checks them again"] if report.unwritten else []
    for wrong in unwritten:
        say(wrong)
    raise typer.Exit(WRONG_CALL if unwritten else _exit_code(report))


def _what_went_wrong(write: Callable[[], None]) -> str:
    """Write a file. If it cannot be written, as on a full disk, the others can: what was judged took hours, perhaps."""
    try:
        write()
    except OpwrightError as error:
        return str(error)
    return ""


def _write_results(report: JudgeReport, file: Path | None) -> None:
    if file is None:
        return
    from opwright.judged.result_files import write_results

    for candidate, why in write_results(report, file):
        console().print(f"not in {file}: {candidate}: {why}", style="yellow", highlight=False)


def _exit_code(report: JudgeReport) -> int:
    from opwright.results import Status

    found = {row.status for row in report.rows}
    if report.partial:
        return INTERRUPTED
    if Status.FAIL in found:
        return FAILED
    if Status.INCONCLUSIVE in found:
        return UNFINISHED
    return PASSED if found - {Status.REFUSED} else NOTHING_RAN
