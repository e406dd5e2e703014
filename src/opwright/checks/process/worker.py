"""What runs inside a worker: fetch the operator, then every family of checks, telling each step."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import torch

from opwright.checks.context import Context
from opwright.checks.table import FAMILIES
from opwright.contract.cases import Case, cases, parse_case
from opwright.errors import CompileError, OpwrightError
from opwright.results import Finding, NotChecked, Refused, Status
from opwright.runtime import serialization
from opwright.runtime.kernel import under_check
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op
from opwright.runtime.targets import Home, import_home

__all__ = ["main"]


class _Pipe:
    """Messages as JSON lines. The first line that comes in is the job."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rwb")

    def receive(self) -> dict[str, Any]:
        job: dict[str, Any] = json.loads(self._file.readline())
        job["pickle"] = self._file.read(job["pickle_bytes"])
        return job

    def send(self, kind: str, **content: Any) -> None:
        self._file.write(json.dumps({"kind": kind, **content}).encode() + b"\n")
        self._file.flush()


def main(connection: socket.socket) -> None:
    """Do one job: see ``isolation.Job`` for its fields."""
    pipe = _Pipe(connection)
    job = pipe.receive()
    _speak_through(pipe)
    os.chdir(job["cwd"])
    sys.path[:] = job["sys_path"]
    os.environ.update(job["environment"])
    pipe.send("doing", check="load", case="")
    try:
        operator = _fetch(job)
    except Exception:  # the user's module may raise anything; the parent may send it by value instead
        pipe.send("unavailable", message=traceback.format_exc(limit=-3))
        return
    if operator is None:
        pipe.send("unavailable", message="the module that defines it holds another version")
        return
    _prepare_torch(job["device"])
    if _build(pipe, operator, job):
        for message in _findings(pipe, operator, job):
            name = "finding" if isinstance(message, Finding) else "not_checked"
            pipe.send(name, **dataclasses.asdict(message))
    pipe.send("done")


def _speak_through(pipe: _Pipe) -> None:
    """What opwright tells its user ("compiling …") goes to the parent, which knows where to show it."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            pipe.send("notice", message=record.getMessage())

    logger = logging.getLogger("opwright")
    logger.handlers, logger.propagate = [Handler()], False
    logger.setLevel(logging.INFO)


def _fetch(job: dict[str, Any]) -> Op | None:
    if job["pickle"]:
        return serialization.load(job["pickle"])
    operator = import_home(Home(**job["home"]))
    return operator if operator is not None and operator.fingerprint == job["fingerprint"] else None


def _prepare_torch(device: str) -> None:
    # Memory from the allocator often holds an earlier, right answer. Filled with NaN, it cannot hide an
    # element that a kernel forgot to write.
    torch.use_deterministic_algorithms(True, warn_only=True)
    if device == "cpu":
        torch.set_num_threads(max(2, torch.get_num_threads() // 2))


def _build(pipe: _Pipe, operator: Op, job: dict[str, Any]) -> bool:
    """Compile and load the kernel; False (and said so) if that fails."""
    if job["kernel"] == REFERENCE:
        return True
    kernel = operator.kernels[job["kernel"]]
    probe = kernel.probe(job["device"])
    if isinstance(probe, Refused):
        pipe.send("refused", reason=str(probe))
        return False
    pipe.send("doing", check="build", case="")
    try:
        kernel.load()
    except CompileError as error:
        pipe.send("finding", **dataclasses.asdict(_failed("build", str(error))))
        return False
    except OpwrightError as error:
        pipe.send("finding", **dataclasses.asdict(_failed("build", f"{type(error).__name__}: {error}")))
        return False
    except Exception:  # importing a kernel's file runs the user's code, which may raise anything
        pipe.send("finding", **dataclasses.asdict(_failed("build", traceback.format_exc(limit=-3))))
        return False
    return True


def _findings(pipe: _Pipe, operator: Op, job: dict[str, Any]) -> Iterator[Finding | NotChecked]:
    def progress(check: str, case: str) -> None:
        pipe.send("doing", check=check, case=case)

    chosen, unjudged = _choose_cases(operator, job)
    yield from unjudged
    context = Context(
        operator, job["kernel"], job["device"], job["level"], chosen, progress, reproduce=job["reproduce"]
    )
    with operator.only(job["kernel"]), under_check():
        yield from _families(context, job)


def _families(context: Context, job: dict[str, Any]) -> Iterator[Finding | NotChecked]:
    for name, family in FAMILIES.items():
        if job["checks"] and name not in job["checks"]:
            continue
        context.progress(name, "")
        try:
            yield from family(context)
        except Exception:  # a check that breaks is never a pass
            yield _failed(name, "the check itself broke:\n" + traceback.format_exc(limit=-4))
        with contextlib.suppress(RuntimeError):
            context.synchronize()


def _choose_cases(operator: Op, job: dict[str, Any]) -> tuple[list[Case], list[NotChecked]]:
    if job["case"]:
        return [parse_case(operator.contract, job["case"])], []
    if job["kernel"] == REFERENCE:
        return cases(operator.contract, job["level"]), []
    kernel = operator.kernels[job["kernel"]]
    hopeless = kernel.not_judged(job["device"])
    derived = cases(operator.contract, job["level"], kernel.spec.dtypes)
    chosen = [c for c in derived if not hopeless.keys() & {dtype for _, dtype in c.dtypes}]
    met = {dtype for c in derived for _, dtype in c.dtypes}
    unjudged = [NotChecked(str(d).removeprefix("torch."), why) for d, why in hopeless.items() if d in met]
    return chosen, unjudged


def _failed(check: str, message: str) -> Finding:
    return Finding(check, Status.FAIL, message=message)
