"""``opwright daemon``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from opwright.cli.common import NOTHING_RAN, PASSED
from opwright.errors import OpwrightError

__all__ = ["daemon"]

# Seconds that torch and Triton may take to import.
_LONGEST_START = 300.0
_MOST_MINUTES = 7 * 24 * 60


class Action(StrEnum):
    """What to do with the daemon."""

    start = "start"
    stop = "stop"
    status = "status"


def daemon(
    action: Annotated[
        Action, typer.Argument(help="start: start it for this environment. stop: stop all. status: show all.")
    ],
    minutes: Annotated[float, typer.Option(help="With start: end after this many minutes without a command.")] = 60.0,
) -> None:
    """Keep a process with torch imported, from which `check`, `selftest` and `watch` start seconds sooner.

    It is for this environment only: after a change of a variable, a package or opwright's sources, commands start as
    they do without it.
    """
    if not 0 < minutes <= _MOST_MINUTES:
        raise typer.BadParameter(f"--minutes {minutes:g} is not between 0 and {_MOST_MINUTES} (a week)")
    code = {Action.start: lambda: _start(minutes), Action.stop: _stop, Action.status: _status}[action]()
    raise typer.Exit(code)


def _start(minutes: float) -> int:
    from filelock import FileLock

    from opwright.workers.daemon import address, client

    _refuse_interpreter()
    parts = address.parts(os.environ)
    folder = address.folder_of(parts)
    address.root().mkdir(mode=0o700, parents=True, exist_ok=True)
    with FileLock(address.root() / ".lock"):
        if found := client.about(folder):
            print(f"already running for this environment: process {found['pid']}")
            return PASSED
        address.make(folder, {"minutes": minutes, "parts": parts})
        pid = _spawn(folder)
    found = client.about(folder)
    commands = f"{', '.join(sorted(client.COMMANDS))} and the passes of watch"
    print(
        f"ready after {found.get('seconds', 0.0):.1f} s: process {pid}. The commands {commands} start from it in this "
        f"environment; it ends after {minutes:g} minutes without one"
    )
    return PASSED


def _refuse_interpreter() -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise OpwrightError(
            "a daemon's commands and workers import Triton together, and TRITON_INTERPRET=1 is for commands only",
            fix="unset it, and pass --interpreter",
        )


def _spawn(folder: Path) -> int:
    """Start the process, and wait until it listens."""
    from opwright.workers.daemon import address
    from opwright.workers.spawn import environment_of_workers

    log = folder / address.LOG
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "opwright.cli.daemon_process", str(folder)],
            env=environment_of_workers(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    end = time.monotonic() + _LONGEST_START
    while (connection := address.connect(folder)) is None:
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            why = log.read_text(errors="replace").strip()[-2000:]
            address.leave(folder)
            raise OpwrightError(f"the daemon has not started: {why or 'it took too long'}")
        time.sleep(0.05)
    connection.close()
    return process.pid


def _stop() -> int:
    from opwright.workers.daemon import address, client

    stopped = 0
    for folder in address.all_folders():
        pid = client.about(folder).get("pid")
        if pid is not None and client.stop(folder):
            stopped += 1
            print(f"stopped: process {pid}")
    if not stopped:
        print("there is none")
    return PASSED


def _status() -> int:
    from opwright.workers.daemon import address, client

    here = address.parts(os.environ)
    shown = 0
    for folder in address.all_folders():
        if about := client.about(folder):
            shown += 1
            print(f"process {about['pid']}, {about['running']} commands running: {_which(about['parts'], here)}")
    if not shown:
        print("there is none")
    return PASSED if shown else NOTHING_RAN


def _which(parts: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Whether a daemon is for this environment, and if not, what differs."""
    different = sorted(name for name in {*parts, *here} if parts.get(name) != here.get(name))
    if not different:
        return "for this environment"
    return f"for another environment, in which these differ: {', '.join(different[:8])}{', …' * (len(different) > 8)}"
