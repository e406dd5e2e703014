"""The messages between a check's processes: the job for a worker, and the worker's reports.

A message is one line of JSON with its kind. A job is such a line too, followed by the operator's bytes if it is
sent by value.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import sys
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BufferedIOBase
from typing import Any

from opwright.checks.context import KERNEL
from opwright.checks.share import Share
from opwright.results import Finding, NotChecked
from opwright.results.json_form import from_json, to_json
from opwright.runtime.targets import ImportPath

__all__ = [
    "LOST_GPU",
    "MOST_FILES",
    "NO_GPU",
    "Doing",
    "Done",
    "Found",
    "Job",
    "KernelEnded",
    "Message",
    "NotRunnable",
    "Notice",
    "RankEnded",
    "Suspected",
    "Unavailable",
    "Unchecked",
    "job_from",
    "message_of",
    "read_job",
    "read_message",
    "record_of",
    "visible",
    "write_job",
    "write_message",
]  # fmt: skip

# The exit code of a process for which CUDA has nothing left but the error that a kernel caused.
LOST_GPU = 86
# That of one for which a GPU has no memory, or no place.
NO_GPU = 87
# A worker's sockets and its output; a judge has one to each process of two groups.
MOST_FILES = 200


@dataclass(frozen=True)
class Job:
    """One worker's job. The operator comes from ``import_path`` or ``pickle``.

    Attributes:
        fingerprint: the operator's fingerprint; its module may define another version by now.
        case: only this case, if any.
        checks: only these, if any; and those that were ``asked`` for, of which these may be a part.
        share: the cases that checks of every case examine, if not all.
        reproduce: the command that repeats a failure, with the placeholders ``{check}`` and ``{case}``.
        environment: variables that the worker sets.
        ranks: the number of processes in the group of an operator that communicates; 0 if there are none, which
            ``why_no_ranks`` then explains.
        timeout: seconds that one step may take.
        temporary: a folder for the kernel's temporary files.
        compiles_ahead: whether a process compiles ahead what later cases need.
        has_second: whether a second process of the kernel runs some of the checks.
        second_temporary: its folder for temporary files.
    """

    kernel: str
    device: str
    level: str
    fingerprint: str
    import_path: ImportPath | None = None
    pickle: bytes = b""
    case: str = ""
    checks: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    share: Share | None = None
    reproduce: str = ""
    cwd: str = field(default_factory=os.getcwd)
    sys_path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    environment: dict[str, str] = field(default_factory=dict)
    ranks: int = 0
    why_no_ranks: str = ""
    timeout: float = 60.0
    temporary: str = ""
    compiles_ahead: bool = False
    has_second: bool = False
    second_temporary: str = ""


def write_job(job: Job) -> bytes:
    header = to_json(dataclasses.replace(job, pickle=b""))
    return json.dumps({"job": header, "pickle_bytes": len(job.pickle)}).encode() + b"\n" + job.pickle


def read_job(stream: BufferedIOBase) -> Job:
    header = json.loads(stream.readline())
    return dataclasses.replace(from_json(Job, header["job"]), pickle=stream.read(header["pickle_bytes"]))


def job_from(data: bytes) -> Job:
    """The reverse of ``write_job``."""
    return read_job(io.BytesIO(data))


@dataclass(frozen=True)
class Doing:
    """A step begins. If no message follows within the time limit, the step counts as hung.

    Attributes:
        who: what runs, which is to blame for a crash.
        at: where a crash in this step happens.
    """

    check: str
    case: str = ""
    who: str = KERNEL
    at: str = ""


@dataclass(frozen=True)
class Notice:
    """A message for the user, such as "compiling …"."""

    text: str


@dataclass(frozen=True)
class Found:
    """A finding of one check."""

    finding: Finding


@dataclass(frozen=True)
class Suspected:
    """A failure that simpler cases are tried for. It is the finding, if one of them ends the worker."""

    finding: Finding


@dataclass(frozen=True)
class Unchecked:
    """Something that was not checked."""

    what: NotChecked


@dataclass(frozen=True)
class NotRunnable:
    """The kernel cannot run in this worker."""

    reason: str


@dataclass(frozen=True)
class Unavailable:
    """The worker cannot import the operator; the parent may send it by value instead."""

    why: str


@dataclass(frozen=True)
class KernelEnded:
    """The process of the kernel has ended before the checks have; or it was given up, as ``broken`` says."""

    broken: str = ""


@dataclass(frozen=True)
class RankEnded:
    """One of the processes of ranks has ended. It is answered with how, in a line of JSON."""

    number: int


@dataclass(frozen=True)
class Done:
    """All checks have ended."""


Message = Doing | Notice | Found | Suspected | Unchecked | NotRunnable | Unavailable | KernelEnded | RankEnded | Done
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Doing, Notice, Found, Suspected, Unchecked, NotRunnable, Unavailable, KernelEnded, RankEnded, Done)
}


def write_message(message: Message) -> bytes:
    return json.dumps(record_of(message)).encode() + b"\n"


def read_message(line: bytes) -> Message:
    """Read what ``write_message`` wrote. Texts may be a kernel's, so that each is made ``visible``."""
    return message_of(_visible_in(json.loads(line)))


def _visible_in(value: Any) -> Any:
    match value:
        case str():
            return visible(value)
        case list():
            return [*map(_visible_in, value)]
        case dict():
            return {visible(name): _visible_in(each) for name, each in value.items()}
    return value


def visible(text: str) -> str:
    """A text with escapes in place of what no terminal or file should get from a kernel: control characters, which may
    move the cursor, and halves of surrogate pairs, which UTF-8 does not have."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" or unicodedata.category(c) == "Zs" else _escaped(c) for c in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def record_of(message: Message) -> dict[str, Any]:
    """A message as JSON."""
    return {"kind": type(message).__name__, "content": to_json(message)}


def message_of(record: Mapping[str, Any]) -> Message:
    """The reverse of ``record_of``."""
    message: Message = from_json(_KINDS[record["kind"]], record["content"])
    return message
