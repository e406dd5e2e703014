"""The messages between a check's processes: the job for a worker, and the worker's reports.

A message is a line of JSON (``workers/messages.py``). A job is a line of JSON and the operator's bytes, if it is sent
by value.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from dataclasses import dataclass, field
from typing import Any, get_args

from opwright.checks.case_range import CaseRange
from opwright.checks.context import KERNEL
from opwright.results import Finding, NotChecked
from opwright.results.json_form import from_json, to_json
from opwright.runtime.targets import ImportPath
from opwright.target import Target

__all__ = [
    "KINDS", "Compiled", "Doing", "Done", "Found", "Job", "KernelEnded", "Message", "NotRunnable", "Notice",
    "RankEnded", "Unavailable", "Unchecked", "Unconfirmed", "job_from", "write_job",
]  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One worker's job. The operator comes from ``import_path`` or ``pickle``.

    Attributes:
        fingerprint: the operator's fingerprint; its module may define another version by now.
        case: only this case, if any.
        checks: only these, if any; and those that were ``asked`` for, of which these may be a part.
        case_range: the cases that checks of every case examine, if not all.
        reproduce: the command that repeats a failure, with the placeholders ``{check}`` and ``{case}``.
        environment: variables that the worker sets.
        ranks: the number of processes in the group of an operator that communicates; 0 if there are none, which
            ``why_no_ranks`` then explains.
        timeout: seconds that one step may take.
        inputs: a file of recorded calls, which are the only cases then.
        temporary: a folder for the kernel's temporary files.
        sandbox: whether the kernel's process is confined.
        memory: the bytes that the kernel's process may have; 0 for no limit.
        unreturned: cases on which the reference did not return, and was ended.
        overlaps: whether the kernel runs on a case while results of the one before are compared.
    """

    kernel: str
    target: Target
    level: str
    fingerprint: str
    import_path: ImportPath | None = None
    pickle: bytes = b""
    case: str = ""
    checks: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    case_range: CaseRange | None = None
    reproduce: str = ""
    cwd: str = field(default_factory=os.getcwd)
    sys_path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    environment: dict[str, str] = field(default_factory=dict)
    ranks: int = 0
    why_no_ranks: str = ""
    timeout: float = 60.0
    inputs: str = ""
    temporary: str = ""
    sandbox: bool = False
    memory: int = 0
    unreturned: tuple[str, ...] = ()
    overlaps: bool = True


def write_job(job: Job) -> bytes:
    return json.dumps(to_json(dataclasses.replace(job, pickle=b""))).encode() + b"\n" + job.pickle


def job_from(data: bytes) -> Job:
    """The reverse of ``write_job``."""
    header, _, pickle = data.partition(b"\n")
    return dataclasses.replace(from_json(Job, json.loads(header)), pickle=pickle)


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
class Compiled:
    """A compilation in the kernel's process has ended. Its seconds do not count as the step's."""

    seconds: float


@dataclass(frozen=True)
class Found:
    """A finding of one check."""

    finding: Finding


@dataclass(frozen=True)
class Unconfirmed:
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
    """One of the processes of ranks has ended. The answer is how, in words."""

    number: int


@dataclass(frozen=True)
class Done:
    """All checks have ended."""


Message = (
    Doing
    | Notice
    | Compiled
    | Found
    | Unconfirmed
    | Unchecked
    | NotRunnable
    | Unavailable
    | KernelEnded
    | RankEnded
    | Done
)
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}
