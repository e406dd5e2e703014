"""The process that workers are forked from: it has imported torch and run nothing.

``python -m opwright.workers FD`` reads requests from a socket. Each request is a role, with the worker's sockets and a
pipe for its output as file descriptors. The answer is ``{"pid": …}`` at once, and ``{"exit": pid, "status": …}`` when
the worker has ended. ``{"stopped": …}`` says that something stopped this process or its parent, other than a terminal's
Ctrl-Z. A question, which has a number in place of a role, is answered by ``{"answer": …}`` after all of these. Forking
takes milliseconds where starting Python and importing torch takes seconds, and a process that has run nothing has no
OpenMP pool and no CUDA context that would not survive the fork.

``multiprocessing``'s fork server would run the user's ``__main__`` again. A process has at most two of these servers:
one has Triton's interpreter switched on before Triton is imported.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import json
import os
import select
import signal
import socket
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

import torch

from opwright.internals.cuda import gpus_counted_by_nvml, may_use_gpus
from opwright.internals.slow_imports import SLOW_IMPORTS
from opwright.machine import ask_compilers
from opwright.workers.forking import read_wakes, reset_signals, run_and_leave, take_streams, wakes
from opwright.workers.relatives import adopt_orphans, children, end_with_parent, let_go_on
from opwright.workers.roles import MESSAGE_BYTES, MOST_FILES, QUESTION, Role

__all__ = ["become", "can_use_a_gpu_after_fork", "import_once", "main", "serve"]

# Seconds after which the server looks after its parent.
_LOOK_AFTER_PARENT = 1.0
# Python's own thresholds of garbage collection; a command has others.
_THRESHOLDS = (700, 10, 10)


def import_once(slow_imports: Sequence[str] = SLOW_IMPORTS) -> None:
    """Import what every worker would import. None of these may use a device or start a thread."""
    ask_compilers()
    with gpus_counted_by_nvml():
        for name in slow_imports:
            with contextlib.suppress(ImportError):  # another version of torch
                importlib.import_module(name)
    for name in (*Role, "platformdirs"):
        importlib.import_module(name)
    importlib.import_module("opwright.runtime.kernel").import_all()
    _look_up_files_of_modules()
    # A collection would look at each object of torch, and so copy its memory in each worker.
    gc.collect()
    gc.freeze()
    gc.enable()


def _look_up_files_of_modules() -> None:
    """Torch asks Python from which module an operator is registered, which first finds the files of all modules that
    are new since it last did: when asked for a file that belongs to none."""
    inspect.getmodule(compile("", "of no module", "exec"))


def can_use_a_gpu_after_fork() -> bool:
    """Whether a forked process could use GPUs: not if an import has asked their driver for something."""
    if torch.version.cuda is None:
        return True
    pid = os.fork()
    if pid == 0:
        os._exit(int(not may_use_gpus()))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def serve(requests: socket.socket, parent: int) -> None:
    """Fork a worker for each request until the other side closes the socket; then kill the remaining workers.

    Args:
        parent: the process that asks, which must not stay stopped.
    """
    woken, _ = wakes()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    adopt_orphans()
    _notice_stops(requests)
    alive: set[int] = set()
    while True:
        ready, _, _ = select.select([requests.fileno(), woken], [], [], _LOOK_AFTER_PARENT)
        # A terminal's Ctrl-Z stops this process as well, a kernel perhaps only its parent.
        if not ready and let_go_on(parent):
            _send(requests, {"stopped": parent})
        if woken in ready:
            read_wakes(woken)
            _report_ended(requests, alive)
            _end_orphans(alive)
        if requests.fileno() in ready and not _accept(requests, alive):
            break
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _accept(requests: socket.socket, alive: set[int]) -> bool:
    try:
        data, fds, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, MOST_FILES)
    except ConnectionError:
        return False
    if not data:
        return False
    if data.startswith(QUESTION):
        _send(requests, {"answer": int(data.removeprefix(QUESTION))})
        return True
    *sockets, output = fds
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        end_with_parent(server)
        requests.close()
        _become_worker(Role(data.decode()), sockets, output)
    for fd in fds:
        os.close(fd)
    alive.add(pid)
    _send(requests, {"pid": pid})
    return True


def _report_ended(requests: socket.socket, alive: set[int]) -> None:
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # there are none
            return
        if ended is None:
            return
        if ended.si_pid in alive:  # what it has started ends with it, as long as its number is no other process's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(ended.si_pid, signal.SIGKILL)
        pid, status = os.waitpid(ended.si_pid, 0)
        if pid in alive:
            alive.discard(pid)
            _send(requests, {"exit": pid, "status": os.waitstatus_to_exitcode(status)})


def _notice_stops(requests: socket.socket) -> None:
    """Report each stop by SIGSTOP, once this process goes on."""
    by_terminal = False

    def stop(*_: object) -> None:
        nonlocal by_terminal
        by_terminal = True
        os.kill(os.getpid(), signal.SIGSTOP)

    def go_on(*_: object) -> None:
        nonlocal by_terminal
        if not by_terminal:
            _send(requests, {"stopped": os.getpid()})
        by_terminal = False

    signal.signal(signal.SIGTSTP, stop)
    signal.signal(signal.SIGCONT, go_on)


def _end_orphans(alive: set[int]) -> None:
    """End what workers that have ended left behind."""
    for pid in children():
        if pid not in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _send(requests: socket.socket, message: dict[str, int]) -> None:
    with contextlib.suppress(ConnectionError):  # the parent has ended; its socket reports that next
        requests.send(json.dumps(message).encode())


def _become_worker(role: Role, sockets: Sequence[int], output: int) -> NoReturn:
    """Turn the forked copy into a worker. Its output gets what it raises, too."""

    def run() -> None:
        os.setsid()
        reset_signals()
        take_streams([os.open(os.devnull, os.O_RDONLY), output, output])
        os.close(output)
        importlib.import_module(role).main(*(socket.socket(fileno=fd) for fd in sockets))

    run_and_leave(run)


def main(descriptor: str, *own_only: str) -> None:
    """Serve the socket with this file descriptor."""
    warnings.simplefilter("ignore")
    import_once(() if own_only else SLOW_IMPORTS)
    if not own_only and not can_use_a_gpu_after_fork():
        os.execv(sys.executable, [sys.executable, "-m", "opwright.workers", descriptor, "own only"])
    serve(socket.socket(fileno=int(descriptor)), os.getppid())


def become(requests: socket.socket, errors: int, parent: int) -> NoReturn:
    """Turn a fork of a process that has imported everything into a server.

    Args:
        errors: a file that takes what it prints as an error.
    """

    def run() -> None:
        reset_signals()
        nothing = os.open(os.devnull, os.O_RDWR)
        take_streams([nothing, nothing, errors])
        _close_files_but({0, 1, 2, requests.fileno()})
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        warnings.simplefilter("ignore")
        gc.set_threshold(*_THRESHOLDS)
        serve(requests, parent)

    run_and_leave(run)


def _close_files_but(kept: set[int]) -> None:
    """Close what a command has open: a kernel could write its verdict there."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(number)
