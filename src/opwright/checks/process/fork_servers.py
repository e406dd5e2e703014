"""The parent's side of the fork servers, which start worker processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from opwright.checks.process.forkserver import MESSAGE_BYTES, Role
from opwright.checks.process.starting import forget_ahead, started
from opwright.checks.relatives import let_go_on
from opwright.errors import CheckError

__all__ = [
    "ForkServer", "JudgeProcess", "ServerEndedError", "alone", "beside_others", "end_workers", "judges_kept",
    "warm_up",
]  # fmt: skip


class ServerEndedError(CheckError):
    """A fork server has ended, so that it forks nothing."""


@dataclass(frozen=True, eq=False)
class JudgeProcess:
    """A judge, which takes one job after the other.

    Attributes:
        subject: what all of them are about; None if there is only one.
    """

    pid: int
    subject: Any
    control: socket.socket

    def take(self, sockets: Sequence[socket.socket], output: int) -> None:
        """Hand it what it needs for a job."""
        with contextlib.suppress(OSError):  # it has ended, which its connections tell
            socket.send_fds(self.control, [b"j"], [*(s.fileno() for s in sockets), output])


class ForkServer:
    """A connection to one fork server (see ``forkserver.py``), shared by the threads of this process."""

    def __init__(self, *, interpret: bool) -> None:
        server = started(interpret=interpret)
        self._process, self._socket = server.process, server.connection
        self._changed = threading.Condition()
        self._starting = threading.Lock()
        self._pids: list[int] = []
        self._has_forked = self._is_closed = False
        self._ended: dict[int, int] = {}
        self.stops = 0  # of the server or of this process
        self._broken = ""
        self._judges: list[JudgeProcess] = []  # those that wait for a job
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def alive(self) -> bool:
        return not self._broken and self._process.poll() is None

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself, after it had started."""
        return self._has_forked and not self._is_closed and not self.alive

    def disturbed_since(self, stops: int) -> str:
        """What has happened to the server, or to this process, since there were so many stops."""
        if self.has_ended:
            return "ended the process that its own was forked from"
        return "stopped a process that checks it" if self.stops > stops else ""

    def _listen(self) -> None:
        while True:
            try:
                data = self._socket.recv(MESSAGE_BYTES)
            except OSError:
                data = b""
            with self._changed:
                if not data:
                    self._broken = self._why_it_broke()
                else:
                    message = json.loads(data)
                    if "pid" in message:
                        self._pids.append(message["pid"])
                        self._ended.pop(message["pid"], None)  # of an earlier process with this number
                    elif "stopped" in message:
                        self.stops += 1
                    else:
                        self._ended[message["exit"]] = message["status"]
                self._changed.notify_all()
            if not data:
                return

    def _why_it_broke(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        assert self._process.stderr is not None  # opened as a pipe
        return self._process.stderr.read().decode(errors="replace").strip()[-2000:] or "it ended without a message"

    def fork(self, role: Role, sockets: Sequence[socket.socket], output: int) -> int:
        """Fork a worker that owns these ends; returns its process id."""
        with self._starting:  # answers come in the order of requests
            with contextlib.suppress(OSError):  # the listener reports the cause
                socket.send_fds(self._socket, [role.encode()], [*(s.fileno() for s in sockets), output])
            with self._changed:
                self._wait_for(lambda: bool(self._pids or self._broken), timeout=300)
                if not self._pids:
                    raise ServerEndedError(f"the process that workers are forked from has ended: {self._broken}")
                self._has_forked = True
                pid = self._pids.pop(0)
                if self._is_closed:  # closed in the meantime, so nothing else ends this worker
                    kill(pid)
                    raise ServerEndedError("the process that workers are forked from was ended")
                return pid

    def judge_of(self, subject: Any, output: int) -> JudgeProcess:
        """A judge of something: one that has judged it before and waits, or a new one. Those of other things end."""
        if subject is not None:
            with self._changed:
                waiting = [judge for judge in self._judges if judge.subject == subject]
                _release(judge for judge in self._judges if judge.subject != subject)
                self._judges = waiting
                if waiting:
                    return waiting.pop()
        ours, theirs = socket.socketpair()
        with theirs:
            return JudgeProcess(self.fork(Role.JUDGE, [theirs], output), subject, ours)

    def keep(self, judge: JudgeProcess) -> None:
        """Let a judge that has finished a job wait for the next one."""
        with self._changed:
            self._judges.append(judge)

    def release_judges(self) -> None:
        """End the judges that wait: what they know may be of sources that change."""
        with self._changed:
            _release(self._judges)
            self._judges = []

    def wait(self, pid: int, timeout: float) -> int | None:
        """The exit code of a worker, or None if it does not end in time."""
        with self._changed:
            self._wait_for(lambda: bool(pid in self._ended or self._broken), timeout)
            return self._ended.get(pid)

    def kill(self, pid: int) -> None:
        """End a worker, if it has not ended: its number may be another process's then."""
        with self._changed:
            if pid not in self._ended and not self._broken:  # with the server, its workers end
                kill(pid)

    def _wait_for(self, has_happened: Callable[[], bool], timeout: float) -> None:
        """Wait for news of the server; a kernel may have stopped it with a signal."""
        end = time.monotonic() + timeout
        while not self._changed.wait_for(has_happened, min(1.0, max(0.0, end - time.monotonic()))):
            if time.monotonic() >= end:
                return
            let_go_on(self._process.pid)

    def close(self) -> None:
        """End the server and its workers."""
        self._is_closed = True  # before _has_forked is read: ``fork`` sets that, and then reads this
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if not self._has_forked:  # it may still be importing, and would read its socket only afterwards
            self._process.kill()


def _release(judges: Iterable[JudgeProcess]) -> None:
    for judge in judges:
        judge.control.close()


_SECONDS_TO_WARM_UP = 60.0
_lock = threading.Lock()
_servers: dict[bool, ForkServer] = {}
_lone_servers: set[ForkServer] = set()
_ends = 0  # how often all were ended
_blocks = 0  # in which judges are kept


class _Turns:
    """Lets many threads go on together, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._going = self._waiting = 0

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        with self._going_when(lambda: not self._waiting):
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
        try:
            with self._going_when(lambda: not self._going):
                yield
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def _going_when(self, may_go: Callable[[], bool]) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(may_go)
            self._going += 1
        try:
            yield
        finally:
            with self._changed:
                self._going -= 1
                self._changed.notify_all()


_turns = _Turns()


@contextlib.contextmanager
def beside_others(*, interpret: bool) -> Iterator[ForkServer]:
    """A block with this process' fork server, one for each way to run Triton; started on first use."""
    with _turns.together():
        with _lock:
            server = _servers.get(interpret)
            if server is None or not server.alive:
                server = _servers[interpret] = ForkServer(interpret=interpret)
        yield server


def warm_up() -> None:
    """Wait until the fork server of this process is ready, and its GPU was used once."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        with beside_others(interpret=False) as server:
            server.wait(server.fork(Role.WARM, [], nowhere), _SECONDS_TO_WARM_UP)
    finally:
        os.close(nowhere)


@contextlib.contextmanager
def alone(*, interpret: bool) -> Iterator[ForkServer]:
    """A block with a new fork server, while no other thread is in such a block."""
    ends = _ends
    with _turns.alone():
        server = ForkServer(interpret=interpret)
        with _lock:
            _lone_servers.add(server)
        if ends != _ends:  # while this waited for its turn
            server.close()
        try:
            yield server
        finally:
            with _lock:
                _lone_servers.discard(server)
            server.close()


@contextlib.contextmanager
def judges_kept() -> Iterator[None]:
    """A block in which judges that have finished wait for another kernel of their operator. They end with the last of
    such blocks, which may be in several threads."""
    global _blocks
    with _lock:
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            left = [] if _blocks else [*_servers.values()]
        for server in left:
            server.release_judges()


def end_workers() -> None:
    """End the fork servers of this process, with every worker; the next check starts new ones."""
    global _ends
    with _lock:
        _ends += 1
        for server in (*_servers.values(), *_lone_servers):
            server.close()
        _servers.clear()
    forget_ahead()


def kill(pid: int) -> None:
    """End a worker with its process group."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
