"""The parent's side of a worker process: start it, read its messages, and survive its crashes and hangs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from opwright.checks.context import KERNEL
from opwright.checks.process.fork_servers import ForkServer, JudgeProcess
from opwright.checks.process.forkserver import Role
from opwright.checks.process.messages import (
    LOST_GPU,
    NO_GPU,
    Doing,
    Done,
    Job,
    KernelEnded,
    Message,
    Notice,
    RankEnded,
    Unavailable,
    read_message,
    visible,
    write_job,
)
from opwright.checks.process.ranks import processes_of
from opwright.checks.process.wire import Connection
from opwright.machine import SIMULATOR

__all__ = ["Ending", "compiling_ahead", "how_ended", "run_job"]

# How much of a kernel's output is kept: endless output must not fill the parent's memory.
_MOST_OUTPUT = 64 * 1024
# The bytes of the longest message, and of all. A check sends some kilobytes; a kernel that has found the connection
# may send anything.
_LONGEST_MESSAGE, _MOST_MESSAGES = 1 << 22, 1 << 26
# All steps of a check may take so many times what one may take: otherwise, steps without an end are no hang.
_STEPS = 30
# Seconds that a process has to end, and one that was killed.
_SECONDS_TO_END, _SECONDS_TO_DIE = 5.0, 30.0


@dataclass(frozen=True)
class Ending:
    """How a worker ended: ``exit_code`` is negative for a signal; ``hung`` if it was killed after a time-out;
    ``broken`` says what was wrong with its messages; and ``out_of_memory`` whether the system ended processes in that
    time to have memory; and ``disturbed`` says what happened to the processes that check it, as by the kernel."""

    exit_code: int
    hung: bool
    doing: str
    case: str
    who: str
    at: str
    output: str
    finished: bool
    broken: str = ""
    out_of_memory: bool = False
    disturbed: str = ""

    @property
    def went_wrong(self) -> bool:
        """Whether it is no worker's end whose check is complete."""
        return not self.finished or self.exit_code != 0 or self.hung or bool(self.broken or self.disturbed)

    @property
    def is_shortage(self) -> bool:
        """Whether it ended for want of memory, of the GPU's; or the system probably ended it, for its own."""
        was_killed = self.out_of_memory and self.exit_code == -signal.SIGKILL
        return (was_killed or self.exit_code == NO_GPU) and not self.hung and not self.broken

    def describe(self, timeout: float) -> str:
        """The ending as a text for messages."""
        if self.broken:
            ending = f"sent {self.broken} in place of a check's messages, and was stopped"
        elif self.hung:
            ending = f"did not return within {timeout:g} s, and was stopped"
        elif self.is_shortage and self.exit_code == NO_GPU:
            ending = "had no memory of the GPU left"
        elif self.is_shortage:
            ending = "was ended by the system, whose memory was short"
        elif self.disturbed:
            ending = self.disturbed
        elif self.exit_code < 0:
            ending = how_ended(self.exit_code)
            ending += f" {self.at}" if ending.endswith(("SIGSEGV", "SIGBUS")) and self.at else ""
        elif self.exit_code == LOST_GPU:
            ending = "caused an error after which the GPU answers nothing to its process"
        else:
            ending = how_ended(self.exit_code)
        tail = visible("\n".join(self.output.strip().splitlines()[-6:]))
        return f"{self.who} {ending}" + (f"; its last output:\n{tail}" if tail else "")


def run_job(server: ForkServer, job: Job, timeout: float, on_message: Callable[[Message], None]) -> Ending:
    """Run a job in new processes, one or two for the kernel and one for its judge, and call ``on_message`` with each of
    the judge's messages.

    Args:
        timeout: seconds that one step may take; a build may take ten times as long.
    """
    ended_before, stops = _ended_for_memory(), server.stops
    ours, theirs = socket.socketpair()
    to_kernel, to_judge = socket.socketpair()
    to_second, second_to_judge = socket.socketpair()
    read_output, write_output = os.pipe()
    pids: dict[str, int] = {}
    ranks = _Ranks(server)
    with contextlib.ExitStack() as ends:
        ends.callback(os.close, read_output)
        ends.callback(ranks.end)
        ends.enter_context(ours)
        folders = [ends.enter_context(_temporary_folder("opwright-kernel-")) for _ in range(2)]
        job = dataclasses.replace(job, temporary=folders[0], second_temporary=folders[1])
        if job.compiles_ahead:
            ends.enter_context(compiling_ahead(server, job))
        try:
            with theirs, to_kernel, to_judge, to_second, second_to_judge:
                try:
                    others = ranks.fork(processes_of(job.ranks), write_output)
                    if job.has_second:
                        pids["second"] = server.fork(Role.KERNEL, [second_to_judge], write_output)
                        others = [to_second]
                    pids["kernel"] = server.fork(Role.KERNEL, [to_judge], write_output)
                    judge = server.judge_of(_subject(job), write_output)
                    pids["judge"] = judge.pid
                    judge.take([theirs, to_kernel, *others], write_output)
                finally:
                    os.close(write_output)
                    ranks.close()
            conversation = _Conversation(ours, read_output, timeout, on_message, ranks.how_ended)
            conversation.send(write_job(job))
            hung = conversation.listen()
        except BaseException:
            for pid in pids.values():
                server.kill(pid)
            raise
    code = _end_all(server, judge, pids, conversation, timeout, hung=hung)
    return Ending(
        exit_code=-signal.SIGKILL if code is None else code,
        hung=hung or (code is None and not conversation.broken and server.alive),
        doing=conversation.doing,
        case=conversation.case,
        who=conversation.who,
        at=conversation.at,
        output=conversation.output.decode(errors="replace"),
        finished=conversation.finished and not conversation.broken,
        broken=conversation.broken,
        out_of_memory=_ended_for_memory() > ended_before,
        disturbed=server.disturbed_since(stops),
    )


def _end_all(
    server: ForkServer,
    judge: JudgeProcess,
    pids: Mapping[str, int],
    conversation: _Conversation,
    timeout: float,
    *,
    hung: bool,
) -> int | None:
    """The exit code that tells how a job ended, whose processes end: that of the kernel's, if that has ended by itself,
    else of the judge; None if that did not end, and was killed. A judge that has finished, and knows what it judges by
    name, waits for another job once nothing of this kernel is left; its code is 0.
    """
    gives_up = hung or bool(conversation.broken)
    judges_on = judge.subject is not None and conversation.finished and not (gives_up or conversation.kernel_ended)
    if not judges_on:
        judge.control.close()
    telling = "kernel" if conversation.kernel_ended else "judge"
    codes: dict[str, int | None] = {"judge": 0}
    for name, pid in pids.items():
        if name == "judge" and judges_on:
            continue
        # How busy the machine is must not decide what is said of a process.
        within = max(_SECONDS_TO_END, timeout) if name == telling else _SECONDS_TO_END
        codes[name] = _end(server, pid, within=0.0 if gives_up or name == "second" else within)
    if judges_on:
        server.keep(judge)
    return codes[telling]


def _subject(job: Job) -> Job | None:
    """What a judge may go on with when it has finished a job: another one that differs only in this. None if what is
    judged is sent by value, or has ranks."""
    if job.pickle or job.ranks:
        return None
    return dataclasses.replace(
        job,
        kernel="",
        environment={name: value for name, value in job.environment.items() if name != SIMULATOR},
        checks=(),
        asked=(),
        share=None,
        reproduce="",
        temporary="",
        compiles_ahead=False,
        has_second=False,
        second_temporary="",
    )


def _temporary_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)


@contextlib.contextmanager
def compiling_ahead(server: ForkServer, job: Job) -> Iterator[int]:
    """A block beside which a process compiles ahead: its id. It reads the job only, and what it prints goes nowhere."""
    ours, theirs = socket.socketpair()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with ours, _temporary_folder("opwright-ahead-") as folder:
        try:
            with theirs:
                pid = server.fork(Role.AHEAD, [theirs], nowhere)
        finally:
            os.close(nowhere)
        try:
            with contextlib.suppress(OSError):  # it has ended at once
                Connection(ours).send_bytes(write_job(dataclasses.replace(job, temporary=folder)))
            yield pid
        finally:
            _end(server, pid, within=0.0)


class _Ranks:
    """The processes of the ranks of a group."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._pids: list[int] = []
        self._sockets: list[socket.socket] = []

    def fork(self, count: int, output: int) -> list[socket.socket]:
        """Fork so many; the judge's ends of their connections."""
        for _ in range(count):
            to_rank, to_judge = socket.socketpair()
            with to_judge:
                self._sockets.append(to_rank)
                self._pids.append(self._server.fork(Role.RANK, [to_judge], output))
        return self._sockets

    def close(self) -> None:
        """Close the connections here, once the judge has them."""
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
            self._server.wait(pid, timeout=_SECONDS_TO_DIE)


def how_ended(exit_code: int) -> str:
    """The ending of a process, in words; a signal's number is negative."""
    if exit_code >= 0:
        return f"ended the process with exit code {exit_code}"
    name = signal.Signals(-exit_code).name if -exit_code in list(signal.Signals) else "a signal"
    return f"crashed with {name}"


def _ended_for_memory() -> int:
    """The number of processes that the system has ended for its memory since it started; 0 where it does not say."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/vmstat").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("oom_kill ")).split()[1])
    return 0


def _end(server: ForkServer, pid: int, *, within: float) -> int | None:
    """The exit code of a process that is about to end; None if it did not in so many seconds, and was killed."""
    code = server.wait(pid, timeout=within)
    if code is None:
        server.kill(pid)
        server.wait(pid, timeout=_SECONDS_TO_DIE)
    return code


class _Conversation:
    """The messages and output of one worker, until it ends or exceeds its time limit."""

    def __init__(
        self,
        messages: socket.socket,
        output: int,
        timeout: float,
        on_message: Callable[[Message], None],
        how_rank_ended: Callable[[int], str],
    ) -> None:
        self._messages, self._output_fd = messages, output
        self._how_rank_ended = how_rank_ended
        self._timeout, self._on_message = timeout, on_message
        self._partial = b""
        self.output = b""
        self.doing, self.case, self.who, self.at = "start", "", KERNEL, ""
        self.finished, self.kernel_ended, self.broken = False, False, ""
        self._received = 0
        self._step_began = self._check_began = time.monotonic()

    def send(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died at once, which listen() reports
            self._messages.sendall(data)

    def listen(self) -> bool:
        """Read messages and output until the worker ends. Returns whether it hung."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._messages, selectors.EVENT_READ)
            selector.register(self._output_fd, selectors.EVENT_READ)
            deadline = self._deadline()
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if time.monotonic() > deadline:
                    return True  # also if it prints endlessly
                for key, _ in ready:
                    if key.fileobj is self._messages:
                        if not self._read_messages():
                            return False  # the worker closed its end: it has ended, whatever its children do
                        deadline = self._deadline()
                    elif not self._read_output():
                        selector.unregister(self._output_fd)
        return False

    def _deadline(self) -> float:
        """When the present step, or the whole check that it belongs to, has taken too long."""
        of_step = self._timeout * (10 if self.doing in ("start", "load", "build") else 1)
        return min(self._step_began + of_step, self._check_began + _STEPS * self._timeout)

    def _read_messages(self) -> bool:
        try:
            data = self._messages.recv(65536)
        except ConnectionResetError:
            data = b""
        self._received += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > _LONGEST_MESSAGE or self._received > _MOST_MESSAGES:
            self.broken = f"{self._received} bytes"
            return False
        for line in lines:
            try:
                message = read_message(line)
            except Exception as error:  # anything may be in such a line
                self.broken = f"what is no message ({type(error).__name__})"
                return False
            if not isinstance(message, Notice):
                self._step_began = time.monotonic()
            if isinstance(message, Doing):
                if message.check != self.doing:
                    self._check_began = self._step_began
                self.doing, self.case, self.who, self.at = message.check, message.case, message.who, message.at
            if isinstance(message, RankEnded):
                self.send(json.dumps(self._how_rank_ended(message.number)).encode() + b"\n")
            if isinstance(message, KernelEnded):
                self.kernel_ended, self.broken = True, message.broken
            self.finished = self.finished or isinstance(message, Done | Unavailable)
            self._on_message(message)
        return bool(data)

    def _read_output(self) -> bool:
        data = os.read(self._output_fd, 1 << 20)
        self.output = (self.output + data)[-_MOST_OUTPUT:]
        return bool(data)
