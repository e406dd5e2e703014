"""The check "sanitizer": does a tool that watches each access to memory find an error in a kernel?

AddressSanitizer also sees what a C++ kernel does with its own memory (on the stack, on the heap, after it was freed),
and indices that overflow. It needs a process of its own, which takes seconds to start: this check is part of the level
``full``, or asked for.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import linecache
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from opwright.checks.context import Context
from opwright.checks.outputs import guard_bands
from opwright.checks.sanitizer.child import MARK
from opwright.checks.sanitizer.reports import AccessError, Section, sections
from opwright.checks.state import in_simulator
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.sizes import elements
from opwright.results import Coverage, Finding, NotChecked, Refused, Status
from opwright.results.outcomes import Instrumented
from opwright.runtime import serialization
from opwright.runtime.targets import find_import_path

__all__ = ["NAME", "check"]

NAME = "sanitizer"
_MOST_CASES = 16
# Seconds for all cases, and between two messages that the check goes on.
_LIMIT_S, _TICK_S = 600.0, 5.0


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Run some contiguous and some strided cases in a process in which a tool watches the kernel."""
    if context.kernel not in context.op.kernels or not (context.level == "full" or NAME in context.selected):
        return
    if in_simulator():
        yield NotChecked(NAME, "the simulator examines every access in all other checks")
        return
    found = context.op.kernels[context.kernel].instrumented(context.device)
    if isinstance(found, Refused):
        yield NotChecked(NAME, str(found))
        return
    _, how = found
    cases = [c for c in _cases(context) if context.ran(c)][:_MOST_CASES]
    if not cases:
        yield NotChecked(NAME, "no case could be run")
        return
    lines, ended = _run(context, how, cases)
    ran, finished = sections(lines, MARK)
    errors = _with_cases(ran)
    for section, error in errors:
        yield context.failed(NAME, section.case, f"{how.tool}: {_described(section, error)}")
    if not errors and not finished:
        yield Finding(NAME, Status.INCONCLUSIVE, ran[-1].case if ran else "", _why_unfinished(how, ended, lines))
    if not errors and finished:
        yield Finding(NAME, Status.PASS, message=f"{len(ran)} cases", coverage=Coverage(len(ran), len(cases)))


def _cases(context: Context) -> list[Case]:
    """Small ones first, of every layout, and one past a tile."""
    some = sorted(guard_bands.some_of_each(context), key=lambda c: elements(context.op.contract, c))
    first = [c for c in some if c.layout == "contiguous"]
    return list(dict.fromkeys([*first[:6], *first[-2:], *(c for c in some if c.layout != "contiguous")]))


def _run(context: Context, how: Instrumented, cases: Sequence[Case]) -> tuple[list[str], bool]:
    """The lines that the process printed, and whether it ended by itself."""
    path = find_import_path(context.op)
    job = {
        "kernel": context.kernel,
        "device": context.device,
        "cases": [str(c) for c in cases],
        "import_path": None if path is None else dataclasses.asdict(path),
        "pickle": base64.b64encode(serialization.dump(context.op)).decode() if path is None else "",
    }
    environment = {**os.environ, **how.environment, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen(
        [sys.executable, "-m", "opwright.checks.sanitizer.child"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
    )  # fmt: skip
    assert process.stdin is not None  # opened as a pipe
    process.stdin.write(json.dumps(job).encode())
    process.stdin.close()
    return _read(context, process)


def _read(context: Context, process: subprocess.Popen[bytes]) -> tuple[list[str], bool]:
    assert process.stdout is not None  # opened as a pipe
    output, end = b"", time.monotonic() + _LIMIT_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < end:
            context.progress(NAME, "")
            if not selector.select(_TICK_S):
                continue
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                process.wait()
                return output.decode(errors="replace").splitlines(), True
            output += data
    process.kill()
    process.wait()
    return output.decode(errors="replace").splitlines(), False


def _with_cases(ran: Sequence[Section]) -> list[tuple[Section, AccessError]]:
    """Each error once, with the first case that has it."""
    found: dict[tuple[str, int, str, str], tuple[Section, AccessError]] = {}
    for section in ran:
        for error in section.errors:
            found.setdefault((error.file, error.line, error.what, error.where), (section, error))
    return list(found.values())


def _described(section: Section, error: AccessError) -> str:
    place = section.place(error.address) if error.address is not None else ""
    first = f"{error.what}, {place}" if place else error.what
    lines = [first]
    if error.file:
        lines.append(f"{Path(error.file).name}:{error.line}{f' in {error.where}' if error.where else ''}")
        if source := linecache.getline(error.file, error.line).strip():
            lines.append(f"    {source}")
    elif error.where:
        lines.append(f"in {error.where}")
    return "\n".join(lines)


def _why_unfinished(how: Instrumented, ended: bool, lines: Sequence[str]) -> str:
    last = "\n".join(line for line in lines if not line.startswith(MARK) and line.strip())[-600:]
    how_long = f"ended early under {how.tool}" if ended else f"did not end within {_LIMIT_S:g} s under {how.tool}"
    return f"the process {how_long}; its last output:\n{last}"
