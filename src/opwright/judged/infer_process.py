"""The process that runs a task's code for the command: it infers the contract, or times candidates. It takes one
request."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.contract.inputs.samples import sample_cases
from opwright.errors import OpwrightError
from opwright.judged.contract_text import contract_text, declaration
from opwright.judged.inferring.inference import infer
from opwright.judged.task import Task
from opwright.judged.times import times_of
from opwright.results.json_form import from_json, to_json
from opwright.runtime.extensions import compiler_caches
from opwright.runtime.targets import load_target
from opwright.workers.sandbox import confine

__all__ = ["Contract", "Request", "main"]

# What is inferred: whether only the given sizes are possible, the declaration, and what is fixed; or the error.
Contract = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What is asked.

    Attributes:
        folder: in which the contract is written, and all that the task writes.
        sandbox: whether this process is confined to it.
        memory: the bytes that this process may have; 0 for no limit.
        timed: the candidates to time, by name; if there are none, the contract is inferred.
        max_autotune: whether the reference is also compiled with that mode.
        device: where they are timed; by default on the GPU, if there is one.
        seconds: how long other values of constants are tried.
    """

    task: Task
    folder: Path
    sandbox: bool
    memory: int = 0
    timed: tuple[str, ...] = ()
    max_autotune: bool = False
    device: str | None = None
    seconds: float = 60.0

    @property
    def file(self) -> Path:
        """That of the contract."""
        return self.folder / f"judged_{self.task.name}.py"


def main(connection: socket.socket) -> None:
    """Answer the request that the connection brings."""
    with connection, connection.makefile("rwb") as stream:
        request = from_json(Request, json.loads(stream.readline()))
        task = request.task
        try:
            _enter(request)
            answer = _timed(request) if request.timed else _contract(request)
        except OpwrightError as error:
            answer = {"error": str(error)}
        except Exception as error:  # the task's own code may raise anything
            doing = "timing its candidates" if request.timed else "inferring the contract"
            answer = {"error": f"{task.file}: {doing} raised {type(error).__name__}: {error}"}
        stream.write(json.dumps(answer).encode() + b"\n")


def _timed(request: Request) -> dict[str, Any]:
    found = times_of(request.file, request.timed, request.device, max_autotune=request.max_autotune)
    answer: dict[str, Any] = to_json(found)
    return answer


def _contract(request: Request) -> Contract:
    """Write the contract, and see whether it can be defined, with the task's own inputs.

    Raises:
        OpwrightError: it cannot, or the task has no contract.
    """
    task = request.task
    inferred = task.stated or infer(task, request.seconds)
    request.file.write_text(contract_text(task, inferred))
    (operator,) = load_target(str(request.file))
    sample_cases(operator.contract)
    declared = "\n".join(filter(None, declaration(task, inferred)))
    return {"has_one_shape": inferred.has_one_shape, "declared": declared, "fixed": to_json(inferred.fixed)}


def _enter(request: Request) -> None:
    """Confine this process, if that is asked for."""
    if request.sandbox:
        caches = compiler_caches()  # where they are by default follows from TMPDIR
        os.environ["TMPDIR"] = str(request.folder)
        tempfile.tempdir = None  # it is read again
        confine([request.folder, *caches])
