"""The check "sanitizer": does a tool that watches each access to memory find an error in a kernel?

AddressSanitizer also sees what a C++ kernel does with its own memory (on the stack, on the heap, after it was freed),
and indices that overflow. compute-sanitizer sees each access of a kernel on a GPU, whatever it does with what it reads.
Both need a process of their own, which takes seconds to start: this check is part of the level ``full``, or asked for.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import linecache
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opwright.checks.check import Check, Process
from opwright.checks.context import Context
from opwright.checks.memory import memory
from opwright.checks.sanitizer.access_error import AccessError
from opwright.checks.sanitizer.child import MARK
from opwright.checks.sanitizer.reports import Section, sections
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.sizes import elements
from opwright.machine import this_machine
from opwright.results import Coverage, Finding, NotChecked, Refused, Status
from opwright.results.outcomes import Instrumented, Tool
from opwright.runtime import serialization
from opwright.runtime.targets import find_import_path

__all__ = ["CHECK", "NAME", "check"]

NAME = "sanitizer"
_MOST_CASES = 16
# Seconds for all cases, without a word of the process, and between two messages that the check goes on.
_LIMIT_S, _SILENT_S, _TICK_S = 600.0, 120.0, 5.0


@dataclass(frozen=True)
class _Ending:
    """How a process ended: its exit code, negative for a signal; None if it was ended because it took too long."""

    lines: list[str]
    code: int | None


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Run some contiguous and some strided cases in a process in which a tool watches the kernel."""
    if not context.is_due(CHECK):
        return
    if context.is_simulated:
        yield NotChecked(NAME, "the simulator examines every access in all other checks")
        return
    found = context.hooks.instrumented(this_machine())
    if isinstance(found, Refused):
        yield NotChecked(NAME, str(found))
        return
    cases = [c for c in _cases(context) if context.ran(c)][:_MOST_CASES]
    if not cases:
        yield NotChecked(NAME, "no case could be run")
        return
    for command in found.commands.values():
        ending = _run(context, found, command, cases)
        wrong = list(_wrong(context, found.tool, ending))
        yield from wrong
        if wrong:
            return
    tools = ", ".join(filter(None, found.commands))
    message = f"{len(cases)} cases, {found.tool}{f' ({tools})' if tools else ''}"
    yield Finding(NAME, Status.PASS, message=message, coverage=Coverage(len(cases), len(cases)))


def _wrong(context: Context, tool: Tool, ending: _Ending) -> Iterator[Finding]:
    """What a run of the tool says; how it ended, if it says nothing and did not come to its end."""
    ran, finished = sections(ending.lines, MARK)
    errors = _on_gpu(ran) if tool is Tool.COMPUTE_SANITIZER else _with_cases(ran)
    for section, error in errors:
        yield context.failed(NAME, section.case, f"{tool}: {_described(section, error)}")
    if errors or finished:
        return
    case = ran[-1].case if ran else ""
    # The exit code of compute-sanitizer is its own.
    died = _death(ending.code) if ran and not ran[-1].returned and tool is Tool.ADDRESS_SANITIZER else ""
    if died:
        yield context.failed(NAME, case, f"under {tool}, the kernel {died}{_last_words(ending.lines)}")
    else:
        yield Finding(NAME, Status.INCONCLUSIVE, case, _why_unfinished(tool, ending))


def _cases(context: Context) -> list[Case]:
    """Small ones first, of every layout, and one past a tile."""
    some = sorted(memory.some_of_each(context), key=lambda c: elements(context.op.contract, c))
    first = [c for c in some if c.layout == "contiguous"]
    return list(dict.fromkeys([*first[:6], *first[-2:], *(c for c in some if c.layout != "contiguous")]))


def _run(context: Context, how: Instrumented, command: Sequence[str], cases: Sequence[Case]) -> _Ending:
    path = find_import_path(context.op)
    job = {
        "kernel": context.kernel,
        "device": context.device,
        "flags": list(how.flags),
        "cases": [str(c) for c in cases],
        "import_path": None if path is None else dataclasses.asdict(path),
        "pickle": base64.b64encode(serialization.dump(context.op)).decode() if path is None else "",
    }
    environment = {**os.environ, **how.environment, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen(
        [*command, sys.executable, "-m", "opwright.checks.sanitizer.child"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
    )  # fmt: skip
    assert process.stdin is not None  # opened as a pipe
    process.stdin.write(json.dumps(job).encode())
    process.stdin.close()
    return _read(context, process)


def _read(context: Context, process: subprocess.Popen[bytes]) -> _Ending:
    assert process.stdout is not None  # opened as a pipe
    output, started, heard = b"", time.monotonic(), time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < min(started + _LIMIT_S, heard + _SILENT_S):
            context.progress(NAME, "")
            if not selector.select(_TICK_S):
                continue
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                return _Ending(_lines(output), process.wait())
            output, heard = output + data, time.monotonic()
    process.kill()
    process.wait()
    return _Ending(_lines(output), None)


def _lines(output: bytes) -> list[str]:
    return output.decode(errors="replace").splitlines()


def _with_cases(ran: Sequence[Section]) -> list[tuple[Section, AccessError]]:
    """Each error once, with the first case that has it."""
    found: dict[tuple[str, int, str, str], tuple[Section, AccessError]] = {}
    for section in ran:
        for error in section.errors:
            found.setdefault((error.file, error.line, error.what, error.where), (section, error))
    return list(found.values())


def _on_gpu(ran: Sequence[Section]) -> list[tuple[Section, AccessError]]:
    """Each kind of error in a line once. compute-sanitizer may print an error after other cases have begun: after a
    wrong access nothing more runs on the GPU, so it is of the first case that raised, or in which the process ended;
    other errors are of no case."""
    case = next((section for section in ran if section.raised or not section.returned), Section(""))
    found: dict[tuple[str, int, str, str], AccessError] = {}
    for error in itertools.chain.from_iterable(section.errors for section in ran):
        found.setdefault((error.file, error.line, error.what, error.where.split(",")[0]), error)
    return [(case, error) for error in found.values()]


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


def _death(code: int | None) -> str:
    """How a process ended that the kernel has ended; empty, if something else may have done that."""
    if code is None or code in (0, -signal.SIGKILL, -signal.SIGTERM):  # as where memory is short
        return ""
    return f"ended its process with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"


def _why_unfinished(tool: Tool, ending: _Ending) -> str:
    how_long = f"did not end in time under {tool}" if ending.code is None else f"ended early under {tool}"
    return f"the process {how_long}{_last_words(ending.lines)}"


def _last_words(lines: Sequence[str]) -> str:
    last = "\n".join(line for line in lines if not line.startswith(MARK) and line.strip())[-600:]
    return f"; its last output:\n{last}" if last else ""


CHECK = Check(
    NAME,
    "Does AddressSanitizer (C++) or compute-sanitizer (GPU) report a wrong access?",
    cases="up to 16, small ones and one past a tile",
    run=check,
    process=Process.KERNEL,
    levels=("full",),
    group="derivatives",
)
