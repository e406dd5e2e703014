"""A unit of work as it is sent to another machine, and what it does there."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opwright.checks.plan import Task
from opwright.checks.unit import Settings, check_unit
from opwright.errors import CheckError
from opwright.machine import this_machine
from opwright.results import Verdict
from opwright.runtime import serialization
from opwright.runtime.op import Op
from opwright.runtime.targets import ImportPath, find_import_path, import_operator

__all__ = ["Work", "do", "versions_here", "work_for"]


@dataclass(frozen=True)
class Work:
    """One kernel on one device, to be checked.

    Attributes:
        import_path: where the operator is imported from, if the machine has the same source.
        pickle: the operator by value; empty if it cannot be sent so, and ``why_not`` says why.
        task, settings: those of ``Task`` and ``Settings`` that are plain values.
    """

    import_path: ImportPath | None
    fingerprint: str
    pickle: bytes
    why_not: str
    task: dict[str, Any]
    settings: dict[str, Any]
    folder: str
    path: Sequence[str]
    environment: dict[str, str]


_OF_TASK = ("kernel", "device", "interpret", "simulate", "else_interpret", "why")


def work_for(task: Task, settings: Settings) -> Work:
    """A task in a form that can be sent."""
    pickle, why_not = b"", ""
    try:
        pickle = serialization.dump(task.op)
    except Exception as error:  # cloudpickle raises whatever the objects' own reducers do
        why_not = f"{type(error).__name__}: {error}"
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings) if f.name != "progress"}
    return Work(
        import_path=find_import_path(task.op),
        fingerprint=task.op.fingerprint,
        pickle=pickle,
        why_not=why_not,
        task={name: getattr(task, name) for name in _OF_TASK},
        settings=values,
        folder=os.getcwd(),
        path=tuple(sys.path),
        environment={k: v for k, v in os.environ.items() if k.startswith("OPWRIGHT_")},
    )


def do(work: Work) -> Verdict:
    """Check the kernel on this machine, isolated in processes of its own as everywhere."""
    with contextlib.suppress(OSError):  # a machine with other folders
        os.chdir(work.folder)
    sys.path[:] = list(dict.fromkeys([*work.path, *sys.path]))
    os.environ.update(work.environment)
    task = Task(op=_operator(work), **work.task)
    return check_unit(task, Settings(progress=lambda task, text: None, **work.settings))


def _operator(work: Work) -> Op:
    """The operator of this machine's own source, if it is the same; else the one that was sent."""
    if work.import_path is not None:
        with contextlib.suppress(Exception):  # the user's module may raise anything here
            found = import_operator(work.import_path)
            if found is not None and found.fingerprint == work.fingerprint:
                return found
    if not work.pickle:
        raise CheckError(
            f"this machine has no such source, and the operator cannot be sent: {work.why_not}",
            fix="install the same version of the operator's package on every machine",
        )
    return serialization.load(work.pickle)


def versions_here() -> dict[str, str]:
    """What has to be equal on all machines of a sweep."""
    machine = this_machine()
    gpus = ", ".join(sorted({gpu.name for gpu in machine.gpus}))
    return {
        "opwright": _version(),
        "Python": machine.python,
        "torch": machine.torch,
        "Triton": machine.triton or "none",
        "GPU": gpus or "none",
    }


def _version() -> str:
    try:
        return importlib.metadata.version("opwright")
    except importlib.metadata.PackageNotFoundError:  # a source tree on the path
        return "of a source tree"
