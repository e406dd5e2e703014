"""What a task of Ray does on the machine where it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import socket
import time
from dataclasses import dataclass
from typing import Any

from opwright.cache import FULL_DISK
from opwright.cluster.artifacts import serve_artifacts
from opwright.cluster.bundle import Bundle, unpack
from opwright.cluster.operators import SentOperator
from opwright.errors import CacheError
from opwright.machine import CORES, Machine, this_machine
from opwright.results import BenchReport, Verdict

__all__ = ["Note", "UnfitMachine", "Where", "do", "machine_here"]

_SECONDS_BETWEEN_NOTES = 0.5
_SECONDS_FOR_THE_FIRST_NOTE = 30.0


class UnfitMachine(Exception):
    """The machine cannot run the item now, whatever the item is: another one may."""


@dataclass(frozen=True)
class Note:
    """A message of a task: which item it runs, in which attempt, on which node, and its present step."""

    number: int
    attempt: int
    node: str
    host: str
    step: str


@dataclass(frozen=True)
class Where:
    """Which item of a sweep a task runs.

    Attributes:
        needs_gpu: whether Ray has given it a GPU.
        cores: its share of the machine's.
    """

    number: int
    attempt: int
    needs_gpu: bool
    cores: int = 1


def do(bundle: Bundle, where: Where, board: Any, store: Any, *operators: SentOperator) -> Any:
    """Run a work item on this machine, isolated in processes of its own as everywhere.

    Args:
        board: the actor that takes notes, which may be dead. The item begins when it has the first one: of an item
            that ends its machine, it must be known which one that was.
        store: the actor with the artifacts of all machines.
        operators: those of the bundle, in its order.
    """
    serve_artifacts(store)  # before anything asks what this machine is
    note = _Notes(where, board)
    note.send("starts", wait=True)
    if where.needs_gpu and not this_machine().has_gpu:
        raise UnfitMachine("Ray gave it a GPU, which torch does not find: it may have fallen off the bus")
    item = unpack(bundle, operators)
    os.environ[CORES] = str(where.cores)
    try:
        result = item.run(note)
    except Exception as error:  # what a kernel does wrong is in the result, so it is the machine's
        why = "its disk is full" if _is_full_disk(error) else f"it raised {type(error).__name__}"
        raise UnfitMachine(f"{why}: {error}") from None
    if isinstance(result, Verdict) and (full := [f for f in result.findings if FULL_DISK in f.message]):
        raise UnfitMachine(f"its disk is full: {full[0].message.splitlines()[0]}")
    return _with_host(result)


def _with_host(result: Any) -> Any:
    """Times with the machine on which they were measured."""
    if not isinstance(result, BenchReport):
        return result
    host = socket.gethostname()
    named = tuple(dataclasses.replace(m, host=host) for m in result)
    return dataclasses.replace(result, measurements=named)


def _is_full_disk(error: BaseException | None) -> bool:
    if isinstance(error, CacheError):
        return FULL_DISK in error.message
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def machine_here(store: Any) -> tuple[str, Machine]:
    """The host's name, and the facts about it, its GPUs included, of which Ray has given none to this task."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # versions of Ray hide them so
        del os.environ["CUDA_VISIBLE_DEVICES"]
    serve_artifacts(store)
    return socket.gethostname(), this_machine()


class _Notes:
    """Sends steps to the board; of steps that follow each other quickly, a few."""

    def __init__(self, where: Where, board: Any) -> None:
        import ray

        self._where, self._board = where, board
        self._node = ray.get_runtime_context().get_node_id()
        self._host = socket.gethostname()
        self._last = 0.0

    def __call__(self, step: str) -> None:
        if time.monotonic() - self._last >= _SECONDS_BETWEEN_NOTES:
            self.send(step)

    def send(self, step: str, *, wait: bool = False) -> None:
        """Send a step, and with ``wait`` go on when the board has it, or is dead."""
        import ray

        self._last = time.monotonic()
        sent = self._board.write.remote(Note(self._where.number, self._where.attempt, self._node, self._host, step))
        if wait:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(sent, timeout=_SECONDS_FOR_THE_FIRST_NOTE)
