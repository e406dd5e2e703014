"""Run any compiler: collect its output, extract its first errors, and handle timeouts and a full disk."""

from __future__ import annotations

import errno
import itertools
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from opwright.errors import CompileError

__all__ = ["compile_error", "does_not_compile", "first_errors", "first_of", "run_compiler"]

# A template that does not end is an error, not a hang.
_TIME_LIMIT_S = 900.0
_SEE_LOG = "the whole output is in this exception's .log"
_MOST_LINES = 6
_MOST_NOTES = 6
# g++ and clang write ``file:3:5: error:``, nvcc and NVRTC ``file(3): error:``; each with source line and caret below.
_PLACE = r"\S[^\n]*?(?::\d+(?::\d+)?|\(\d+\)): "
_MESSAGE = re.compile(rf"(?m)^(?={_PLACE}(?:fatal |catastrophic )?(?:error|warning|note)\b)")
_ERROR = re.compile(rf"{_PLACE}(?:fatal |catastrophic )?error\b")
_NOTE = re.compile(rf"{_PLACE}note\b")
_CONTEXT = re.compile(r"In file included from |\S[^\n]*: (?:In|At) |\S[^\n]*:   required ")


def run_compiler(
    command: Sequence[str],
    what: str,
    *,
    target: str = "",
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    time_limit_s: float = _TIME_LIMIT_S,
) -> str:
    """Run a compiler, linker or assembler to its end.

    Args:
        what: what is compiled; error messages begin with it: ``"demo::saxpy: saxpy.cpp"``.
        target: the target, if it is not this machine: ``"sm_90"``.
        folder: its working directory.
        environment: of the process; this one's by default.

    Returns:
        Its output.

    Raises:
        CompileError: it failed, with the first errors of its output; or it did not end in time.
        OSError: the disk is full (the cache reports where), or there is no such program.
    """
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", check=False,
            timeout=time_limit_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired as expired:
        log = (expired.stderr or b"").decode(errors="replace") if isinstance(expired.stderr, bytes) else ""
        raise CompileError(
            f"{what}: {Path(command[0]).name} did not end within {time_limit_s:g} s and was stopped",
            log=log, fix="look for a template or a loop that the compiler unfolds without end",
        ) from None  # fmt: skip
    log = done.stderr + done.stdout  # nvcc writes its errors to one, its host compiler to the other
    if done.returncode != 0:
        raise compile_error(log, what, folder, target=target)
    return log


def compile_error(log: str, what: str, folder: Path | None = None, *, target: str = "") -> CompileError:
    """The error for a compiler's output; arguments as for ``run_compiler``.

    Raises:
        OSError: the disk is full. The cache reports where, and what to do.
    """
    if "No space left on device" in log:
        raise OSError(errno.ENOSPC, "No space left on device")
    shown = log.replace(f"{folder}/", "") if folder is not None else log
    return CompileError(f"{does_not_compile(what, target)}\n{first_errors(shown)}", log=shown, fix=_SEE_LOG)


def does_not_compile(what: str, target: str) -> str:
    """How the message of a compile error begins."""
    return f"{what} does not compile{f' for {target}' if target else ''}"


def first_errors(log: str, limit: int = 3) -> str:
    """The first errors with their notes, source lines and carets; if no error is found, the end of the output."""
    groups: list[list[str]] = []  # each message with its notes
    for message in _MESSAGE.split(log):
        if groups and _NOTE.match(message):
            groups[-1].append(message)
        else:
            groups.append([message])
    errors = [messages for messages in groups if _ERROR.match(messages[0])]
    shown = [first_of(list(map(_first_lines, e[: _MOST_NOTES + 1])), len(e), "notes") for e in errors[:limit]]
    return first_of(shown, len(errors)) if errors else log.strip()[-2000:] or "the compiler printed nothing"


def _first_lines(message: str) -> str:
    """A message without what leads to the next one: in which files and functions that is."""
    lines = message.rstrip().split("\n\n")[0].splitlines()
    own = itertools.takewhile(lambda line: not _CONTEXT.match(line), lines[1:])
    return "\n".join([lines[0], *own][:_MOST_LINES])


def first_of(shown: Sequence[str], count: int, what: str = "") -> str:
    """Some errors, and how many more there are."""
    more = f"\n… and {count - len(shown)} more{what and f' {what}'}" if count > len(shown) else ""
    return "\n".join(shown) + more
