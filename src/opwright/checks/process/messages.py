"""What a check's processes tell each other: the job that a worker gets, and what it says while it works.

A message is one line of JSON with its kind. A job is such a line too, with the operator's bytes behind it where it
travels by value.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from dataclasses import dataclass, field
from io import BufferedIOBase
from typing import Any

from opwright.results import Finding, NotChecked
from opwright.results.json_form import from_json, to_json
from opwright.runtime.targets import ImportPath

__all__ = [
    "Doing",
    "Done",
    "Found",
    "Job",
    "LeftOut",
    "Message",
    "NotRunnable",
    "Notice",
    "Unavailable",
    "read_job",
    "read_message",
    "write_job",
    "write_message",
]  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One worker's work. ``import_path`` or ``pickle`` says where the operator comes from.

    Attributes:
        fingerprint: of the operator that is meant; a module may hold another version by now.
        case: only this case, if any.
        checks: only these, if any.
        reproduce: the command that repeats a failure, with ``{check}`` and ``{case}`` to be filled in.
        environment: variables that the worker sets.
    """

    kernel: str
    device: str
    level: str
    fingerprint: str
    import_path: ImportPath | None = None
    pickle: bytes = b""
    case: str = ""
    checks: tuple[str, ...] = ()
    reproduce: str = ""
    cwd: str = field(default_factory=os.getcwd)
    sys_path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    environment: dict[str, str] = field(default_factory=dict)


def write_job(job: Job) -> bytes:
    header = to_json(dataclasses.replace(job, pickle=b""))
    return json.dumps({"job": header, "pickle_bytes": len(job.pickle)}).encode() + b"\n" + job.pickle


def read_job(stream: BufferedIOBase) -> Job:
    header = json.loads(stream.readline())
    return dataclasses.replace(from_json(Job, header["job"]), pickle=stream.read(header["pickle_bytes"]))


@dataclass(frozen=True)
class Doing:
    """A step begins. Silence for longer than a time-out after it counts as a hang of this step."""

    check: str
    case: str = ""


@dataclass(frozen=True)
class Notice:
    """Something for the user: "compiling …"."""

    text: str


@dataclass(frozen=True)
class Found:
    """A finding of one check."""

    finding: Finding


@dataclass(frozen=True)
class LeftOut:
    """Something that was not looked at."""

    what: NotChecked


@dataclass(frozen=True)
class NotRunnable:
    """The kernel cannot run in this worker."""

    reason: str


@dataclass(frozen=True)
class Unavailable:
    """The worker does not find the operator that is meant; the parent may send it by value instead."""

    why: str


@dataclass(frozen=True)
class Done:
    """All checks have ended."""


Message = Doing | Notice | Found | LeftOut | NotRunnable | Unavailable | Done
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Doing, Notice, Found, LeftOut, NotRunnable, Unavailable, Done)
}


def write_message(message: Message) -> bytes:
    return json.dumps({"kind": type(message).__name__, "content": to_json(message)}).encode() + b"\n"


def read_message(line: bytes) -> Message:
    record = json.loads(line)
    message: Message = from_json(_KINDS[record["kind"]], record["content"])
    return message
