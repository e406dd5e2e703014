"""Runs a job of a check in its workers, and survives their crashes and hangs.

A kernel may stop or end the processes that check it. The kernels beside it could have done it as well, so the jobs of
that time run again, one by one, each with a server of its own (``scheduling/check_item.py``). So the kernel that
disturbs others is found.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from opwright.checks.limits.resident_memory import MemoryWatch
from opwright.checks.process.messages import (
    KINDS,
    Compiled,
    Doing,
    Done,
    Job,
    KernelEnded,
    Message,
    Notice,
    RankEnded,
    Unavailable,
    write_job,
)
from opwright.checks.process.rank_client import processes_of
from opwright.target import Target
from opwright.workers.fork_server_client import ForkServer, ReusableWorker, ServerEndedError
from opwright.workers.messages import read_message
from opwright.workers.roles import Role
from opwright.workers.supervise import BrokenMessage, Ending, Supervision, ended_for_memory, how_ended

__all__ = ["run_job"]

# All steps of a check may take so many times what one may take: otherwise, steps without an end are no hang.
_STEPS = 30
# Seconds that a process has to end.
_SECONDS_TO_END = 5.0


def run_job(server: ForkServer, job: Job, timeout: float, on_message: Callable[[Message], None]) -> Ending:
    """Run a job in a worker for the kernel and a checker, and call ``on_message`` with each of the checker's messages.

    Args:
        timeout: seconds that one step may take; a build may take ten times as long.

    Raises:
        ServerEndedError: this process has ended the workers in the meantime, as after Ctrl-C.
    """
    ended_before, stops = ended_for_memory(), server.stops
    ours, theirs = socket.socketpair()
    to_kernel, to_checker = socket.socketpair()
    read_output, write_output = os.pipe()
    pids: dict[str, int] = {}
    ranks = _Ranks(server)
    with contextlib.ExitStack() as ends:
        ends.callback(os.close, read_output)
        ends.callback(ranks.end)
        ends.enter_context(ours)
        job = dataclasses.replace(job, temporary=ends.enter_context(_temporary_folder("opwright-kernel-")))
        try:
            with theirs, to_kernel, to_checker:
                try:
                    to_ranks = ranks.fork(processes_of(job.ranks), write_output)
                    pids["kernel"] = server.fork(Role.KERNEL, [to_checker], write_output)
                    checker = server.reusable(Role.CHECKER, _common(job), write_output)
                    pids["checker"] = checker.pid
                    checker.take([theirs, to_kernel, *to_ranks], write_output)
                finally:
                    os.close(write_output)
                    ranks.close()
            supervised = _Checker(ours, read_output, timeout, on_message, ranks)
            supervised.send(write_job(job))
            with MemoryWatch(pids["kernel"], job.memory) as watch:
                hung = supervised.listen()
            is_stopped = hung and _is_stopped(checker.pid)
        except BaseException:
            for pid in pids.values():
                server.kill(pid)
            raise
    code = _end_all(server, checker, pids, supervised, within=0.0 if hung or supervised.broken else timeout)
    if server.is_closed and not supervised.finished:  # nothing is known of the kernel, which has not crashed
        raise ServerEndedError("the process that workers are forked from was ended while one of them ran")
    return Ending(
        exit_code=-signal.SIGKILL if code is None else code,
        finished=supervised.finished and not supervised.broken,
        hung=hung or (code is None and not supervised.broken and server.alive),
        output=supervised.output,
        broken=supervised.broken,
        out_of_memory=ended_for_memory() > ended_before,
        over_memory=watch.exceeded,
        disturbed=server.disturbed_since(stops) or ("stopped a process that checks it" if is_stopped else ""),
    )


def _end_all(
    server: ForkServer, checker: ReusableWorker, pids: Mapping[str, int], supervised: _Checker, *, within: float
) -> int | None:
    """The exit code that tells how a job ended, whose workers end: that of the kernel's process, if that has ended by
    itself, else of the checker; None if that did not end, and was killed. A checker that has finished, and may take
    another job, waits for it once nothing of this kernel is left; its code is 0.

    Args:
        within: the seconds of a step; 0 to end all at once.
    """
    waits = checker.common is not None and supervised.finished and within > 0 and not supervised.kernel_ended
    if not waits:
        checker.control.close()
    telling = "kernel" if supervised.kernel_ended else "checker"
    codes: dict[str, int | None] = {"checker": 0}
    for name, pid in pids.items():
        if name == "checker" and waits:
            continue
        # How busy the machine is must not decide what is said of a process.
        longest = max(_SECONDS_TO_END, within) if name == telling else _SECONDS_TO_END
        codes[name] = server.end(pid, within=longest if within else 0.0)
    if waits:
        server.keep(checker)
    return codes[telling]


def _is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process, which does not end by itself then."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def _common(job: Job) -> Job | None:
    """What all jobs of a checker process have in common: a job without the parts that may differ. None if it takes one
    job only, because the operator is sent by value or has ranks."""
    if job.pickle or job.ranks:
        return None
    return dataclasses.replace(
        job,
        kernel="",
        target=Target(job.target.device),
        checks=(),
        asked=(),
        case_range=None,
        reproduce="",
        temporary="",
    )


def _temporary_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)


class _Ranks:
    """The processes of the ranks of a group."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._pids: list[int] = []
        self._sockets: list[socket.socket] = []

    def fork(self, count: int, output: int) -> list[socket.socket]:
        """Fork so many; the checker's ends of their connections."""
        for _ in range(count):
            to_rank, to_checker = socket.socketpair()
            with to_checker:
                self._sockets.append(to_rank)
                self._pids.append(self._server.fork(Role.RANK, [to_checker], output))
        return self._sockets

    def close(self) -> None:
        """Close the connections here, once the checker process has them."""
        for one in self._sockets:
            one.close()

    def how_ended(self, number: int) -> str:
        """How a process has ended, in words."""
        if not 0 <= number < len(self._pids):
            return "has ended"
        code = self._server.wait(self._pids[number], timeout=_SECONDS_TO_END)
        return "has closed its connection" if code is None else how_ended(code)

    def end(self) -> None:
        """End all of them."""
        for pid in self._pids:
            self._server.kill(pid)
        for pid in self._pids:
            self._server.end(pid)


class _Checker(Supervision):
    """The checker process of one job, and what its messages have told so far.

    Attributes:
        finished: whether it has sent its last message.
        kernel_ended: whether the kernel's process has ended before.
    """

    def __init__(
        self,
        connection: socket.socket,
        output: int,
        timeout: float,
        on_message: Callable[[Message], None],
        ranks: _Ranks,
    ) -> None:
        super().__init__(connection, output)
        self._timeout, self._on_message, self._ranks = timeout, on_message, ranks
        self._doing = "start"
        self._step_began = self._check_began = time.monotonic()
        self._compiling = _STEPS * timeout
        self.finished = self.kernel_ended = False

    def receive(self, line: bytes) -> None:
        try:
            message: Message = read_message(line, KINDS)
        except Exception as error:  # anything may be in such a line
            raise BrokenMessage(f"a malformed message ({type(error).__name__})") from error
        if isinstance(message, Compiled):
            self._give_back(message.seconds)
        elif not isinstance(message, Notice):
            self._step_began = time.monotonic()
        if isinstance(message, Doing) and message.check != self._doing:
            self._doing, self._check_began = message.check, self._step_began
        if isinstance(message, RankEnded):
            self.send(self._ranks.how_ended(message.number).encode())
        if isinstance(message, KernelEnded):
            self.kernel_ended, self.broken = True, message.broken
        self.finished = self.finished or isinstance(message, Done | Unavailable)
        self._on_message(message)

    def _give_back(self, seconds: float) -> None:
        """A compilation does not count as time of its step; all of them have a limit, as a kernel may report any."""
        seconds = min(max(0.0, seconds), self._compiling)
        self._compiling -= seconds
        self._step_began += seconds
        self._check_began += seconds

    def deadline(self) -> float:
        """Of the present step, or of the whole check that it belongs to."""
        of_step = self._timeout * (10 if self._doing in ("start", "load", "build") else 1)
        return min(self._step_began + of_step, self._check_began + _STEPS * self._timeout)
