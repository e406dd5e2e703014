"""``opwright check``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opwright.cli.common import (
    FAILED,
    INTERRUPTED,
    NOTHING_RAN,
    PASSED,
    UNFINISHED,
    Html,
    Json,
    Level,
    Targets,
    Verbose,
    console,
    exit_code,
    refuse_files,
    write_records,
)
from opwright.cli.development.on_lines import Sarif, ShownAs, write_on_lines
from opwright.cli.sweep import Ray, Resume, say, sweep
from opwright.sweep.events import Events

if TYPE_CHECKING:
    from opwright.report.on_lines.located import Located
    from opwright.results import CheckReport

__all__ = ["check", "run_and_show"]


_MUTANTS = 20


def _list(wanted: bool) -> None:
    if wanted:
        from opwright.checks.table import CHECKS
        from opwright.report.terminal.checks import show_checks

        show_checks(console(), CHECKS.values())
        raise typer.Exit


def _help_cases(wanted: bool) -> None:
    if wanted:
        from opwright.contract.inputs.case_help import PARTS, WORDS
        from opwright.report.terminal.checks import show_cases

        show_cases(console(), PARTS, WORDS)
        raise typer.Exit


def check(
    targets: Targets,
    kernel: Annotated[
        list[str] | None, typer.Option(help="Only kernels of this name: cpp, or ns::op:cpp (repeatable).")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Only this device: cpu, cuda, or cpu-sim (the simulator).")] = None,
    interpreter: Annotated[
        bool, typer.Option("--interpreter", help="Without a GPU, run Triton kernels in Triton's interpreter.")
    ] = False,
    level: Annotated[
        Level, typer.Option(help="smoke: three cases in one dtype. full: more sizes and layouts, and Inductor.")
    ] = Level.quick,
    checks: Annotated[
        list[str] | None, typer.Option("--check", "--only", help="Only this check, such as values (repeatable).")
    ] = None,
    list_checks: Annotated[
        bool, typer.Option("--list", callback=_list, is_eager=True, help="List the checks, and exit.")
    ] = False,
    case: Annotated[str, typer.Option(help="Only this case, as a failure prints it.")] = "",
    help_cases: Annotated[
        bool, typer.Option("--help-cases", callback=_help_cases, is_eager=True, help="Explain the parts of a case.")
    ] = False,
    require: Annotated[
        list[str] | None,
        typer.Option(
            help="Fail if an operator has no kernel in this language, such as cuda, or if one cannot run (repeatable)."
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings and too few cases, too.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that one step of a check may take.")] = 60.0,
    jobs: Annotated[int | None, typer.Option(help="How many kernels to check at a time.")] = None,
    ranks: Annotated[
        int | None,
        typer.Option(help="Processes for operators that communicate and for DTensors; on GPUs, one for each GPU."),
    ] = None,
    inputs: Annotated[Path | None, typer.Option(help="Check recorded calls only: a file of ow.capture.")] = None,
    ray: Ray = None,
    resume: Resume = None,
    mutate: Annotated[
        bool, typer.Option("--mutate", help="Put small faults into the kernels, and show those that no check finds.")
    ] = False,
    mutants: Annotated[
        int, typer.Option(help="With --mutate: try at most this many faults in each kernel.")
    ] = _MUTANTS,
    seed: Annotated[int, typer.Option(help="With --mutate: another seed draws other faults.")] = 0,
    verbose: Verbose = False,
    json: Json = None,
    html: Html = None,
    sarif: Sarif = None,
    annotations: ShownAs = None,
) -> None:
    """Verify every kernel of an operator against its reference."""
    if mutate:
        if checks or case or require or html or interpreter or ranks or inputs or level is not Level.quick:
            raise typer.BadParameter(
                "--mutate chooses cases and checks itself: leave out --level, --check, --case, --require, --ranks, "
                "--inputs, --interpreter and --html"
            )
        with sweep(ray, resume, jobs) as where:
            code = _mutate(
                targets,
                json,
                verbose,
                strict,
                kernels=kernel,
                device=device,
                mutants=mutants,
                seed=seed,
                timeout=timeout,
                jobs=jobs,
                **where.options(),
            )
        raise typer.Exit(code)
    if mutants != _MUTANTS or seed != 0:
        raise typer.BadParameter("--mutants and --seed must be passed with --mutate")
    with sweep(ray, resume, jobs) as where:
        report = run_and_show(
            targets,
            json,
            html,
            verbose,
            strict,
            kernels=kernel,
            device=device,
            interpreter=interpreter,
            level=level.value,
            checks=checks or (),
            case=case,
            require=require or (),
            timeout=timeout,
            jobs=jobs,
            ranks=ranks,
            inputs=inputs,
            **where.options(),
        )
    write_on_lines(lambda: _on_lines(report, targets), sarif, annotations)
    raise typer.Exit(exit_code(report, strict=strict))


def _on_lines(report: CheckReport, targets: Sequence[str]) -> list[Located]:
    from opwright.report.on_lines.located import located
    from opwright.runtime.targets import load_target
    from opwright.watching.places import places_of

    return located(report, places_of(operator for target in targets for operator in load_target(target)))


def _mutate(targets: Sequence[str], json: Path | None, verbose: bool, strict: bool, **options: Any) -> int:
    """Run mutation testing, and return the exit code; ``options`` are those of ``ow.mutate``."""
    from opwright.mutation.run import mutate
    from opwright.report.terminal.mutation import show_mutation
    from opwright.report.terminal.progress import TaskLine

    refuse_files(json, None)
    with TaskLine(console(stderr=True)) as line:
        report = mutate(*targets, events=Events(finished=line.on_message, resumed=say), **options)
    write_records(report.to_json(), json, None)
    show_mutation(console(), report, verbose=verbose, strict=strict)
    if report.partial:
        return INTERRUPTED
    if strict and report.survivors:
        return FAILED
    if report.unknown:
        return UNFINISHED
    return PASSED if report.ran_anything else NOTHING_RAN


def run_and_show(
    targets: Sequence[str],
    json: Path | None,
    html: Path | None,
    verbose: bool,
    strict: bool | None = None,
    **options: Any,
) -> CheckReport:
    """Check, with the progress on stderr and the report on stdout; ``options`` are those of ``ow.check``.

    ``strict`` is None if the command has no such option.
    """
    from opwright.report.terminal.check import show_check
    from opwright.report.terminal.progress import CheckProgress
    from opwright.workers.spawn import prefork

    refuse_files(json, html)
    if options.get("executor") is None and not options.get("interpreter"):
        prefork()  # before this process imports torch
    with CheckProgress(console(stderr=True), verbose=verbose) as progress:
        from opwright.checks.run import Interrupted
        from opwright.checks.run import check as run_check

        try:
            report = run_check(*targets, events=Events(progress.plan, progress.step, progress.done, say), **options)
        except Interrupted as interrupted:
            report = interrupted.report
    write_records(report.to_json(), json, html)  # first, as there may be no terminal any more
    show_check(console(), report, verbose=verbose, strict=strict)
    return report
