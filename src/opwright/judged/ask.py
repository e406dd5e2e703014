"""Asks processes that run the code of tasks: for contracts, and for times."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from opwright.checks.limits.resident_memory import MemoryWatch
from opwright.errors import OpwrightError
from opwright.judged.infer_process import Contract, Request
from opwright.results import Verdict
from opwright.results.json_form import from_json, to_json
from opwright.results.judged import Times
from opwright.workers.pool import shared_server
from opwright.workers.roles import Role

__all__ = ["contract_of", "times_of"]

# All times of a task may take so many times what a step may take.
_TIMES_AS_LONG = 20


def contract_of(request: Request, timeout: float) -> Contract:
    """What ``infer_process`` answers; an error if it does not in time."""
    return _answer(request, f"inferring the contract of {request.task.file}", timeout)


def times_of(
    requests: Iterable[Request], verdicts: Sequence[Verdict], device: str | None, timeout: float
) -> Iterator[tuple[tuple[str, str], Times]]:
    """Times the candidates that are right, one task after the other: operator and kernel, and the times or why there
    are none."""
    for request in requests:
        name = request.task.qualname
        right = tuple(v.kernel for v in verdicts if v.op == name and v.status.is_right)
        if right:
            asked = dataclasses.replace(request, timed=right, device=device)
            answer = _answer(asked, f"timing the candidates of {request.task.file}", _TIMES_AS_LONG * timeout)
            yield from (((name, kernel), _times_in(answer, kernel)) for kernel in right)


def _times_in(answer: dict[str, Any], kernel: str) -> Times:
    if kernel in answer:
        return from_json(Times, answer[kernel])
    return Times(why_none=answer.get("error", "no timer takes it on this device"))


def _answer(request: Request, doing: str, timeout: float) -> dict[str, Any]:
    try:
        with shared_server(interpret=False) as server, _connected() as (ours, theirs):
            pid = server.fork(Role.INFERENCE, [theirs], _output())
            theirs.close()
            ours.settimeout(timeout)
            try:
                with MemoryWatch(pid, request.memory) as watch, ours.makefile("rwb") as stream:
                    stream.write(json.dumps(to_json(request)).encode() + b"\n")
                    stream.flush()
                    line = stream.readline()
            except OSError:
                return {"error": f"{doing} took more than {timeout:g} s"}
            finally:
                server.end(pid)
    except OpwrightError as error:
        return {"error": str(error)}
    if watch.exceeded:
        return {"error": f"{doing} took more than {watch.exceeded / (1 << 30):.3g} GiB of memory"}
    answer: dict[str, Any] = json.loads(line) if line else {"error": f"running {request.task.file} ended the process"}
    return answer


@contextlib.contextmanager
def _connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def _output() -> int:
    """Where the process prints: nowhere."""
    return os.open(os.devnull, os.O_WRONLY)
