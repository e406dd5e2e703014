"""The fork servers of this process: one for each way to run Triton, which threads share, and servers for one thread."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from opwright.workers.fork_server_client import ForkServer
from opwright.workers.roles import Role
from opwright.workers.spawn import end_prestarted

__all__ = ["end_workers", "exclusive_server", "shared_server", "warm_up", "workers_kept"]

_SECONDS_TO_WARM_UP = 60.0
_lock = threading.Lock()
_servers: dict[bool, ForkServer] = {}
_exclusive_servers: set[ForkServer] = set()
_ends = 0  # how often all were ended
_blocks = 0  # in which workers are kept


class _SharedLock:
    """Many threads hold it shared, or one holds it exclusively; that one waits for the others, and they for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holders = self._waiting = 0

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        with self._held_when(lambda: not self._waiting):
            yield

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
        try:
            with self._held_when(lambda: not self._holders):
                yield
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def _held_when(self, is_free: Callable[[], bool]) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(is_free)
            self._holders += 1
        try:
            yield
        finally:
            with self._changed:
                self._holders -= 1
                self._changed.notify_all()


_in_use = _SharedLock()


@contextlib.contextmanager
def shared_server(*, interpret: bool) -> Iterator[ForkServer]:
    """A block with this process' fork server for one way to run Triton; started on first use."""
    with _in_use.shared():
        with _lock:
            server = _servers.get(interpret)
            if server is None or not server.alive:
                server = _servers[interpret] = ForkServer(interpret=interpret)
        yield server


@contextlib.contextmanager
def exclusive_server(*, interpret: bool) -> Iterator[ForkServer]:
    """A block with a new fork server, while no other thread is in a block of either kind."""
    ends = _ends
    with _in_use.exclusive():
        server = ForkServer(interpret=interpret)
        with _lock:
            _exclusive_servers.add(server)
        if ends != _ends:  # while this waited
            server.close()
        try:
            yield server
        finally:
            with _lock:
                _exclusive_servers.discard(server)
            server.close()


def warm_up() -> None:
    """Wait until the fork server of this process is ready, and its GPU was used once."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        with shared_server(interpret=False) as server:
            server.wait(server.fork(Role.WARM, [], nowhere), _SECONDS_TO_WARM_UP)
    finally:
        os.close(nowhere)


@contextlib.contextmanager
def workers_kept() -> Iterator[None]:
    """A block in which reusable workers wait for another job. They end with the last of such blocks, which may be in
    several threads."""
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
            server.release_waiting()


def end_workers() -> None:
    """End the fork servers of this process, with every worker; the next check starts new ones."""
    global _ends
    with _lock:
        _ends += 1
        for server in (*_servers.values(), *_exclusive_servers):
            server.close()
        _servers.clear()
    end_prestarted()
