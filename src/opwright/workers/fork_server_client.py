"""The parent's side of a fork server: a connection that asks for workers, waits for their ends, and ends them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opwright.errors import CheckError
from opwright.workers.relatives import let_go_on
from opwright.workers.roles import MESSAGE_BYTES, QUESTION, Role
from opwright.workers.spawn import started

__all__ = ["ForkServer", "ReusableWorker", "ServerEndedError"]

# Until the server has imported torch, and answers the first request; until what was killed has ended.
_SECONDS_TO_START, _SECONDS_TO_DIE = 300.0, 30.0


class ServerEndedError(CheckError):
    """A fork server has ended, so that it forks nothing."""


@dataclass(frozen=True, eq=False)
class ReusableWorker:
    """A worker that takes one job after the other.

    Attributes:
        common: what all its jobs have in common; None if it takes one job only.
    """

    pid: int
    common: Any
    control: socket.socket

    def take(self, sockets: Sequence[socket.socket], output: int) -> None:
        """Hand it what it needs for a job."""
        with contextlib.suppress(OSError):  # it has ended, which its connections tell
            socket.send_fds(self.control, [b"j"], [*(s.fileno() for s in sockets), output])


class ForkServer:
    """A connection to one fork server (see ``fork_server_process.py``), shared by the threads of this process."""

    def __init__(self, *, interpret: bool) -> None:
        server = started(interpret=interpret)
        self._process, self._socket = server.process, server.connection
        self._changed = threading.Condition()
        self._starting = threading.Lock()
        self._pids: list[int] = []
        self._has_forked = self._is_closed = False
        self._ended: dict[int, int] = {}
        self.stops = 0  # of the server or of this process
        self._questions = itertools.count()
        self._answered: set[int] = set()
        self._broken = ""
        self._waiting: list[ReusableWorker] = []  # for a job
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def alive(self) -> bool:
        return not self._broken and self._process.poll() is None

    @property
    def is_closed(self) -> bool:
        """Whether this process has ended it, with its workers."""
        return self._is_closed

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself, after it had started."""
        return self._has_forked and not self._is_closed and not self.alive

    def disturbed_since(self, stops: int) -> str:
        """What has happened to the server, or to this process, since there were so many stops."""
        self._hear_all()
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
                    elif "answer" in message:
                        self._answered.add(message["answer"])
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

    def _hear_all(self) -> None:
        """Wait for what the server had to say until now. Of a stop it tells after this process goes on, which may have
        all that it waits for by then."""
        question = next(self._questions)
        with contextlib.suppress(OSError):  # the listener reports the cause
            self._socket.send(QUESTION + str(question).encode())
        with self._changed:
            self._wait_for(lambda: bool(question in self._answered or self._broken), timeout=_SECONDS_TO_START)

    def fork(self, role: Role, sockets: Sequence[socket.socket], output: int) -> int:
        """Fork a worker that owns these ends; returns its process id."""
        with self._starting:  # answers come in the order of requests
            with contextlib.suppress(OSError):  # the listener reports the cause
                socket.send_fds(self._socket, [role.encode()], [*(s.fileno() for s in sockets), output])
            with self._changed:
                self._wait_for(lambda: bool(self._pids or self._broken), timeout=_SECONDS_TO_START)
                if not self._pids:
                    raise ServerEndedError(f"the process that workers are forked from has ended: {self._broken}")
                self._has_forked = True
                pid = self._pids.pop(0)
                if self._is_closed:  # closed in the meantime, so nothing else ends this worker
                    kill(pid)
                    raise ServerEndedError("the process that workers are forked from was ended")
                return pid

    def reusable(self, role: Role, common: Any, output: int) -> ReusableWorker:
        """A worker for jobs that have something in common: one that waits for them, or a new one. Others end."""
        if common is not None:
            with self._changed:
                waiting = [worker for worker in self._waiting if worker.common == common]
                for worker in self._waiting:
                    if worker.common != common:
                        worker.control.close()
                self._waiting = waiting
                if waiting:
                    return waiting.pop()
        ours, theirs = socket.socketpair()
        with theirs:
            return ReusableWorker(self.fork(role, [theirs], output), common, ours)

    def keep(self, worker: ReusableWorker) -> None:
        """Let a worker that has finished a job wait for the next one."""
        with self._changed:
            self._waiting.append(worker)

    def release_waiting(self) -> None:
        """End the workers that wait for a job: what they know may be of sources that change."""
        with self._changed:
            for worker in self._waiting:
                worker.control.close()
            self._waiting = []

    def wait(self, pid: int, timeout: float) -> int | None:
        """The exit code of a worker, or None if it does not end in time."""
        with self._changed:
            self._wait_for(lambda: bool(pid in self._ended or self._broken), timeout)
            return self._ended.get(pid)

    def end(self, pid: int, *, within: float = 0.0) -> int | None:
        """The exit code of a worker that is about to end; None if it did not in so many seconds, and was killed."""
        code = self.wait(pid, timeout=within)
        if code is None:
            self.kill(pid)
            self.wait(pid, timeout=_SECONDS_TO_DIE)
        return code

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


def kill(pid: int) -> None:
    """End a worker with its process group."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
