"""``opwright check`` and ``opwright demo``."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opwright.cli.common import FAILED, NOTHING_RAN, PASSED, Html, Json, Targets, console, write_records
from opwright.errors import TargetError

if TYPE_CHECKING:
    from opwright.results import CheckReport

__all__ = ["check", "demo"]


class Level(StrEnum):
    """How thorough a check is."""

    quick = "quick"
    full = "full"


def check(
    targets: Targets,
    kernel: Annotated[list[str] | None, typer.Option(help="Only this kernel (repeatable).")] = None,
    device: Annotated[str | None, typer.Option(help="Only this type of device: cpu, cuda or cpu-sim.")] = None,
    level: Annotated[Level, typer.Option(help="full: more sizes and layouts, and Inductor.")] = Level.quick,
    only: Annotated[list[str] | None, typer.Option(help="Only this family of checks (repeatable).")] = None,
    case: Annotated[str, typer.Option(help="Only this case, as a failure names it.")] = "",
    require: Annotated[
        list[str] | None, typer.Option(help="A backend whose refusal is a failure (repeatable).")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds after which a step counts as hung.")] = 60.0,
    jobs: Annotated[int | None, typer.Option(help="Kernels checked at a time.")] = None,
    json: Json = None,
    html: Html = None,
) -> None:
    """Verify every kernel of an operator against its reference."""
    report = _run_check(
        targets,
        json,
        html,
        kernels=kernel,
        device=device,
        level=level.value,
        checks=only or (),
        case=case,
        require=require or (),
        timeout=timeout,
        jobs=jobs,
    )
    raise typer.Exit(_exit_code(report))


def demo(
    operators: Annotated[
        list[str] | None, typer.Argument(help="Gallery operators (default: all).", metavar="[NAME...]")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Gradients, streams, opcheck and torch.compile too: minutes.")
    ] = False,
    json: Json = None,
    html: Html = None,
) -> None:
    """Check the gallery's values on whatever this machine has, and show what was found.

    Named operators that have something of their own to show (conv1d) show it first.
    """
    import importlib

    from opwright import gallery

    modules = {module.rpartition(".")[2]: module for module in gallery.OPERATORS}
    unknown = [name for name in operators or () if name not in modules]
    if unknown:
        raise TargetError(f"the gallery has no {unknown[0]!r}", fix=f"it has {', '.join(modules)}")
    chosen = [modules[name] for name in operators or modules]
    own = [getattr(importlib.import_module(modules[name]), "demo", None) for name in operators or ()]
    agreed = False not in [demonstrate() for demonstrate in own if demonstrate is not None]
    report = _run_check(
        chosen, json, html, reference=True, checks=() if full else ("values", "metadata", "inputs unchanged")
    )
    raise typer.Exit(_exit_code(report) if agreed else FAILED)


def _run_check(targets: Sequence[str], json: Path | None, html: Path | None, **options: Any) -> CheckReport:
    from opwright.report.records import refuse_unwritable
    from opwright.report.terminal import CheckProgress, show_check

    refuse_unwritable(json, html)
    with CheckProgress(console(stderr=True)) as progress:
        from opwright.checks.run import check as run_check

        report = run_check(*targets, progress=progress.step, on_verdict=progress.done, **options)
    show_check(console(), report)
    write_records(report.to_json(), json, html)
    return report


def _exit_code(report: CheckReport) -> int:
    if any(v.status == "fail" for v in report.verdicts):
        return FAILED
    return PASSED if report.ran_anything else NOTHING_RAN
