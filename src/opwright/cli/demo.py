"""``opwright demo``: the gallery on this machine, in less than a minute or in full."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from opwright.cli.check import run_and_show
from opwright.cli.common import FAILED, Html, Json, Verbose, console, exit_code, refuse_files, write_records
from opwright.cli.story import BASIC_CHECKS, run_story
from opwright.errors import TargetError

__all__ = ["demo"]


def demo(
    operators: Annotated[
        list[str] | None, typer.Argument(help="Only these of the gallery's modules, all kernels.", metavar="[NAME...]")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every kernel, every check and every case: minutes.")
    ] = False,
    verbose: Verbose = False,
    json: Json = None,
    html: Html = None,
) -> None:
    """Check and time the gallery on this machine, in less than a minute.

    Named modules with a demonstration of their own (conv1d) run it first.
    """
    from opwright import gallery

    modules = {module.rpartition(".")[2]: module for module in gallery.OPERATORS}
    unknown = [name for name in operators or () if name not in modules]
    if unknown:
        raise TargetError(
            f"the example must be one of {', '.join(modules)}, got {unknown[0]!r}", fix="name some, or none for a tour"
        )
    if not operators and not everything:
        raise typer.Exit(_run_story(verbose, json, html))
    agreed = False not in [demonstrate() for demonstrate in _own_demos(modules[name] for name in operators or ())]
    report = run_and_show(
        [modules[name] for name in operators or modules],
        json,
        html,
        verbose,
        strict=None,
        reference=True,
        **({} if everything else {"checks": BASIC_CHECKS, "level": "smoke"}),
    )
    raise typer.Exit(exit_code(report) if agreed else FAILED)


def _own_demos(modules: Iterable[str]) -> Iterator[Callable[[], bool]]:
    for module in modules:
        demonstrate = getattr(importlib.import_module(module), "demo", None)
        if demonstrate is not None:
            yield demonstrate


def _run_story(verbose: bool, json: Path | None, html: Path | None) -> int:
    from opwright.report.terminal.demo import show_story
    from opwright.report.terminal.progress import CheckProgress

    refuse_files(json, html)
    with CheckProgress(console(stderr=True), verbose=verbose) as progress:
        story = run_story(progress)
    show_story(console(), story)
    write_records(story.checked.to_json(), json, html, *([story.times.to_json()] if story.times else []))
    failed = not story.wrong.found or (story.times and story.times.errors)
    return FAILED if failed and story.checked.ran_anything else exit_code(story.checked)
