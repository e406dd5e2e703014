"""How a worker is supervised: its messages and output until it ends or exceeds its time, and how it ended."""

from __future__ import annotations

import abc
import contextlib
import os
import selectors
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from opwright.workers.messages import visible
from opwright.workers.wire import Connection, Ended

__all__ = ["LOST_GPU", "NO_GPU", "BrokenMessage", "Ending", "Supervision", "ended_for_memory", "how_ended"]

# The exit code of a worker for which CUDA has nothing left but the error that a kernel caused.
LOST_GPU = 86
# That of one for which a GPU has no memory, or no place.
NO_GPU = 87
# How much of a worker's output is kept: endless output must not fill the parent's memory.
_MOST_OUTPUT = 64 * 1024
# The bytes of the longest message, and of all. A check sends some kilobytes; a kernel that has found the connection
# may send anything.
_LONGEST_MESSAGE, _MOST_MESSAGES = 1 << 22, 1 << 26


@dataclass(frozen=True)
class Ending:
    """How a worker ended.

    Attributes:
        exit_code: negative for a signal.
        finished: whether it has sent its last message.
        hung: whether it was killed after a time-out.
        broken: what was wrong with its messages.
        out_of_memory: whether the system ended processes in that time to have memory.
        over_memory: the limit in bytes that its memory exceeded, for which it was ended; else 0.
        disturbed: what happened to the processes that check it, as by the kernel.
    """

    exit_code: int = 0
    finished: bool = True
    hung: bool = False
    output: str = ""
    broken: str = ""
    out_of_memory: bool = False
    over_memory: int = 0
    disturbed: str = ""

    @property
    def went_wrong(self) -> bool:
        """Whether the job is not complete, or the worker did not end as it should."""
        return not self.finished or self.exit_code != 0 or self.hung or bool(self.broken or self.disturbed)

    @property
    def is_shortage(self) -> bool:
        """Whether it ended for want of memory, of the GPU's; or was ended for its own, by the system or at a limit."""
        was_killed = (self.out_of_memory or self.over_memory > 0) and self.exit_code == -signal.SIGKILL
        return (was_killed or self.exit_code == NO_GPU) and not self.hung and not self.broken

    def describe(self, who: str, at: str, timeout: float) -> str:
        """The ending as a text for messages.

        Args:
            who: what ran.
            at: where it would have crashed in its last step.
        """
        if self.broken:
            ending = f"sent {self.broken} in place of a check's messages, and was stopped"
        elif self.hung:
            ending = f"did not return within {timeout:g} s, and was stopped"
        elif self.over_memory:
            ending = f"took more than {self.over_memory / (1 << 30):.3g} GiB of memory, and was stopped"
        elif self.is_shortage and self.exit_code == NO_GPU:
            ending = "had no memory of the GPU left"
        elif self.is_shortage:
            ending = "was ended by the system, whose memory was short"
        elif self.disturbed:
            ending = self.disturbed
        elif self.exit_code == LOST_GPU:
            ending = "caused an error after which the GPU answers nothing to its process"
        else:
            ending = how_ended(self.exit_code)
            ending += f" {at}" if ending.endswith(("SIGSEGV", "SIGBUS")) and at else ""
        # What it printed has nothing to do with the limit.
        tail = "" if self.over_memory else visible("\n".join(self.output.strip().splitlines()[-6:]))
        return f"{who} {ending}" + (f"; its last output:\n{tail}" if tail else "")


def how_ended(exit_code: int) -> str:
    """The ending of a process, in words; a signal's number is negative."""
    if exit_code >= 0:
        return f"ended the process with exit code {exit_code}"
    name = signal.Signals(-exit_code).name if -exit_code in list(signal.Signals) else "a signal"
    return f"crashed with {name}"


def ended_for_memory() -> int:
    """The number of processes that the system has ended for its memory since it started; 0 where it does not say."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/vmstat").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("oom_kill ")).split()[1])
    return 0


class BrokenMessage(Exception):
    """A worker has sent something else than a message; the text says what."""


class Supervision(abc.ABC):
    """The messages and output of one worker, until it ends or exceeds its time limit.

    Attributes:
        broken: what was wrong with its messages; then no more are read.
    """

    def __init__(self, connection: socket.socket, output: int) -> None:
        self._connection, self._output_fd = connection, output
        self._partial, self._received = b"", 0
        self._output = b""
        self.broken = ""

    @abc.abstractmethod
    def receive(self, line: bytes) -> None:
        """Take a message. Raises BrokenMessage."""

    @abc.abstractmethod
    def deadline(self) -> float:
        """When what the worker does now has taken too long, by ``time.monotonic``."""

    @property
    def output(self) -> str:
        return self._output.decode(errors="replace")

    def send(self, data: bytes) -> None:
        with contextlib.suppress(Ended):  # which listen() reports
            Connection(self._connection).send_bytes(data)

    def listen(self) -> bool:
        """Read messages and output until the worker ends. Returns whether it hung."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(self._output_fd, selectors.EVENT_READ)
            deadline = self.deadline()
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if time.monotonic() > deadline:
                    return True  # also if it prints endlessly
                for key, _ in ready:
                    if key.fileobj is self._connection:
                        if not self._read_messages():
                            return False  # the worker closed its end: it has ended, whatever its children do
                        deadline = self.deadline()
                    elif not self._read_output():
                        selector.unregister(self._output_fd)
        return False

    def _read_messages(self) -> bool:
        try:
            data = self._connection.recv(65536)
        except ConnectionResetError:
            data = b""
        self._received += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        try:
            if len(self._partial) > _LONGEST_MESSAGE or self._received > _MOST_MESSAGES:
                raise BrokenMessage(f"{self._received} bytes")
            for line in lines:
                self.receive(line)
        except BrokenMessage as broken:
            self.broken = str(broken)
            return False
        return bool(data)

    def _read_output(self) -> bool:
        data = os.read(self._output_fd, 1 << 20)
        self._output = (self._output + data)[-_MOST_OUTPUT:]
        return bool(data)
