"""``opwright watch``."""

from __future__ import annotations

import json as json_format
import sys
from typing import Annotated, Any

import typer

from opwright.cli.common import PASSED, Level, Targets, console

__all__ = ["watch"]


def watch(
    targets: Targets,
    once: Annotated[
        bool, typer.Option("--once", help="One pass over what changed since the last one, then exit.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one record a line, for programs.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also check what did not change since the last pass.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="Only this device: cpu, cuda, or cpu-sim (the simulator).")] = None,
    level: Annotated[Level, typer.Option(help="The level of the full check, which follows three cases.")] = Level.quick,
    no_times: Annotated[bool, typer.Option("--no-times", help="Do not time what passes.")] = False,
) -> None:
    """Check and time what changed, after each save."""
    if once:
        raise typer.Exit(
            _once(targets, json=json, device=device, level=level.value, everything=everything, times=not no_times)
        )
    from opwright.watching.loop import watch as run

    options = ["--level", level.value, *(["--device", device] if device else [])]
    options += ["--all"] * everything + ["--no-times"] * no_times
    if json:
        run(targets, options, _print)
        return
    from opwright.report.watch_screen import WatchScreen

    with WatchScreen(console()) as screen:
        run(targets, options, screen.on_event)
    raise typer.Exit(PASSED)


def _once(targets: list[str], *, json: bool, **options: Any) -> int:
    from opwright.workers.spawn import prefork

    prefork()  # before this process imports torch
    from opwright.report.watch_screen import WatchScreen
    from opwright.watching.once import Options, check_once

    if json:
        return check_once(targets, Options(**options), _print)
    screen = WatchScreen(console())
    code = check_once(targets, Options(**options), screen.on_event)
    console().print(screen.render())
    return code


def _print(event: dict[str, Any]) -> None:
    sys.stdout.write(json_format.dumps(event) + "\n")
    sys.stdout.flush()
