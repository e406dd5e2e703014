"""Starts fork servers. This module imports no torch until a check runs: a command may start a server early, which
imports torch at the same time as the command itself, or fork it once both have their imports."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from opwright.workers.daemon import client
from opwright.workers.forking import ForkedProcess

__all__ = ["Started", "end_prestarted", "environment_of_workers", "prefork", "prestart", "started"]

# Several kernels are checked at a time, so that each has some of the cores, and threads that wait for work sleep: by
# default, OpenMP's spin on the cores that others need. (After torch.set_num_threads, LU in MKL may return garbage.)
_THREADS = {"OMP_NUM_THREADS": str(max(2, (os.cpu_count() or 1) // 2)), "OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True)
class Started:
    """A fork server that has been started: its process, the connection to it, and its environment."""

    process: subprocess.Popen[bytes] | ForkedProcess
    connection: socket.socket
    environment: dict[str, str]


# What a new Python runs to become a fork server.
_MODULE = "opwright.workers"
_lock = threading.RLock()
_prestarted: list[Started] = []  # at most one


def prestart() -> None:
    """Start one that the next check takes. It is ended with this process if none does."""
    with _lock:
        if not _prestarted:
            _keep(_start(environment_of_workers(os.environ)))


def prefork() -> None:
    """Like ``prestart``, but fork it from this process once that has imported what workers need: so this is done
    once for both. This process gets the threads of a worker, and must not time kernels.

    A process that has imported torch already may have run something, and starts another one.
    """
    with _lock:
        if not _prestarted:
            environment = environment_of_workers(os.environ)
            is_new = "torch" not in sys.modules and os.environ.get("TRITON_INTERPRET") != "1"
            _keep((_forked(environment) if is_new else None) or _start(environment))


def _keep(one: Started) -> None:
    _prestarted.append(one)
    atexit.register(end_prestarted)


def end_prestarted() -> None:
    """End what was started early, and was not taken."""
    with _lock:
        for one in _prestarted:
            one.connection.close()
            one.process.kill()
            one.process.wait()
        _prestarted.clear()


def started(*, interpret: bool) -> Started:
    """A fork server: the one that was started early, if one that starts now would have the same environment."""
    environment = environment_of_workers(os.environ, interpret=interpret)
    with _lock:
        if (
            _prestarted
            and _is_as_now(_prestarted[0].environment, environment)
            and _prestarted[0].process.poll() is None
        ):
            return _prestarted.pop()
        if not interpret:  # what was loaded in the meantime has set variables
            end_prestarted()
    return _start(environment)


def _is_as_now(before: dict[str, str], now: dict[str, str]) -> bool:
    """Whether nothing but imports of torch has changed the environment; these do so in the other process as well."""
    if before == now:
        return True
    from opwright.internals.compiler import set_by_imports  # torch is imported by now

    return {**set_by_imports(), **before} == {**set_by_imports(), **now}


def environment_of_workers(environment: Mapping[str, str], *, interpret: bool = False) -> dict[str, str]:
    """The variables of a fork server, from those of a command."""
    return {**_THREADS, **environment, "TRITON_INTERPRET": "1" if interpret else "0"}


def _start(environment: dict[str, str]) -> Started:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = _from_daemon(environment, theirs) or _new_process(environment, theirs)
    return Started(process, ours, environment)


def _from_daemon(environment: dict[str, str], requests: socket.socket) -> ForkedProcess | None:
    """A fork of the daemon that this process comes from, if what both have imported would be the same now."""
    if client.origin is None or not _is_as_now(environment_of_workers(client.origin.environment), environment):
        return None
    return client.forked_server(environment, requests)


def _new_process(environment: dict[str, str], requests: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", _MODULE, str(requests.fileno())],
        pass_fds=[requests.fileno()],
        env={**environment, "PYTHONPATH": _import_path()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def _forked(environment: dict[str, str]) -> Started | None:
    """A fork of this process, which has imported nothing yet; None if that could not be a fork server."""
    with _variables(environment):
        gc.disable()  # imports leave no garbage; ``import_once`` collects once, and enables it
        from opwright.workers import fork_server_process

        fork_server_process.import_once()
        if not fork_server_process.can_use_a_gpu_after_fork():
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        printed, prints = os.pipe()
        parent = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pid = os.fork()
        if pid == 0:
            os.environ["PYTHONPATH"] = _import_path()
            fork_server_process.become(theirs, prints, parent)
    theirs.close()
    os.close(prints)
    try:
        return Started(ForkedProcess(pid, os.fdopen(printed, "rb")), ours, environment)
    except OSError:  # this system has no pidfd
        ours.close()  # which ends it
        return None


@contextlib.contextmanager
def _variables(environment: Mapping[str, str]) -> Iterator[None]:
    """A block with the variables of workers, which OpenMP and Triton read once."""
    before = {name: os.environ.get(name) for name, value in environment.items() if os.environ.get(name) != value}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _import_path() -> str:
    """For a fork server's own imports, and those of other programs that workers start; each worker gets the path of its
    job."""
    return os.pathsep.join(p for p in sys.path if p)
