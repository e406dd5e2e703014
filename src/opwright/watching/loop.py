"""Runs a pass after each save. A pass that is still running when a file changes is ended, and begins again."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from opwright.errors import OpwrightError

__all__ = ["SUFFIXES", "folders_of", "watch"]

# Of files whose change begins a pass.
SUFFIXES = frozenset({".py", ".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp", ".mojo", ".ptx"})
# Milliseconds: editors write a file in several steps.
_SETTLE, _LONGEST = 20, 200


def watch(targets: Sequence[str], options: Sequence[str], on_event: Callable[[dict[str, Any]], None]) -> None:
    """Run passes until interrupted.

    Args:
        options: those of ``opwright watch`` for a pass.
        on_event: called with the records of each pass.

    Raises:
        OpwrightError: watchfiles is not installed.
    """
    try:
        from watchfiles import watch as changes
    except ImportError:
        raise OpwrightError(
            "opwright watch needs watchfiles, which is not installed", fix="pip install 'opwright[watch]'"
        ) from None
    command = [sys.executable, "-m", "opwright", "watch", *targets, "--once", "--json", *options]
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(_running(command, on_event))
        on_event({"event": "watching", "folders": [str(folder) for folder in folders_of(targets)]})
        saves = changes(
            *folders_of(targets), watch_filter=lambda _, path: is_source(path), step=_SETTLE, debounce=_LONGEST
        )
        with contextlib.suppress(KeyboardInterrupt):  # how a user ends it
            for _ in saves:
                run.begin_again()


def is_source(path: str) -> bool:
    """Whether a change of this file begins a pass."""
    file = Path(path)
    return file.suffix in SUFFIXES and not any(part.startswith((".", "__pycache__")) for part in file.parts[-2:])


def folders_of(targets: Sequence[str]) -> list[Path]:
    """The folders of the files and modules of some targets."""
    found = []
    for target in targets:
        location = target.partition(":")[0]
        spec = None if Path(location).exists() else importlib.util.find_spec(location.partition(".")[0])
        file = Path(spec.origin) if spec is not None and spec.origin else Path(location)
        found.append(file.resolve().parent)
    return list(dict.fromkeys(found))


class _Passes:
    """The pass that runs now, and the thread that reads its records."""

    def __init__(self, command: Sequence[str], on_event: Callable[[dict[str, Any]], None]) -> None:
        self._command, self._on_event = command, on_event
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def begin_again(self) -> None:
        self.end()
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None  # it is a pipe
        for line in process.stdout:
            with contextlib.suppress(json.JSONDecodeError):  # a module may print
                self._on_event(json.loads(line))

    def end(self) -> None:
        if self._process is None or self._reader is None:
            return
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()
        self._reader.join()


@contextlib.contextmanager
def _running(command: Sequence[str], on_event: Callable[[dict[str, Any]], None]) -> Iterator[_Passes]:
    passes = _Passes(command, on_event)
    passes.begin_again()
    try:
        yield passes
    finally:
        passes.end()
