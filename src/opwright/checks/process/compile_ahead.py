"""Triton's compilations of a check, several at a time and before a case needs them.

A process of its own calls the launcher with each case's arguments on ``meta``, where launches compile and run nothing,
and has a child for each kernel that comes. What they compile is in Triton's cache then. Whoever needs a kernel that is
being compiled waits for it (``CompileOnce``).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch

from opwright.checks.process.timed_compilation import Limit, run_in_child
from opwright.internals.triton import LaunchOf, launches_made_by
from opwright.workers.forking import end_group, fork
from opwright.workers.relatives import end_with_parent

__all__ = ["CompileOnce", "compile_ahead"]

# A launch that waits for its own kernel must not wait long for a processor.
_NICENESS = 5
_SECONDS_BETWEEN_LOOKS = 0.02

Compile = Callable[..., Any]


class CompileOnce:
    """A function that compiles, of which only one call at a time compiles a kernel, in this process and those that it
    forks. The others wait, and take the result from Triton's cache."""

    def __init__(self, compile_: Compile) -> None:
        self._compile = compile_
        self._locks = os.memfd_create("compilations")  # a byte of it is locked for each kernel

    def __call__(self, source: Any, *arguments: Any, **options: Any) -> Any:
        key = _key(source, options)
        fcntl.lockf(self._locks, fcntl.LOCK_EX, 1, key)
        try:
            return self._compile(source, *arguments, **options)
        finally:
            fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, key)

    def wait(self, seconds: float, source: Any, *arguments: Any, **options: Any) -> None:
        """Until nobody compiles a kernel, so many seconds at most."""
        until, key = time.monotonic() + seconds, _key(source, options)
        while time.monotonic() < until:
            try:
                fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, key)
            except OSError:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            else:
                fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, key)
                return


def _key(source: Any, options: dict[str, Any]) -> int:
    """A number of 62 bits for a source with its options."""
    text = f"{source.hash()} {sorted((options.get('options') or {}).items(), key=str)}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 2


def compile_ahead(
    launcher: Callable[[], Callable[..., Any]],
    arguments: Callable[[], Iterable[Sequence[Any]]],
    compile_: CompileOnce,
    *,
    at_once: int,
    limit: Limit,
) -> int | None:
    """Begin to compile what a launcher launches with some arguments. Returns the process that does it, which ends with
    this one; None where no process can be made.

    Args:
        launcher: makes it; called in the process.
        arguments: makes those of each call, on ``meta``; called in the process.
        compile_: what compiles, made of ``triton.compiler.compile``.
        at_once: so many kernels are compiled at a time.
        limit: of a compilation, which is given up then.
    """
    parent = os.getpid()
    child = fork()
    if child == 0:
        _run(launcher, arguments, _Pool(compile_, at_once, limit), parent)
    return child


def _run(
    launcher: Callable[[], Callable[..., Any]],
    arguments: Callable[[], Iterable[Sequence[Any]]],
    pool: _Pool,
    parent: int,
) -> NoReturn:
    try:
        end_with_parent(parent)
        os.nice(_NICENESS)
        torch.set_num_threads(1)  # a fork has none of the threads that torch would wait for
        # Messages of this process would go to a connection of its parent, in the midst of others.
        logging.getLogger("opwright").handlers = [logging.NullHandler()]
        with open(os.devnull, "w") as nowhere:
            for output in (1, 2):
                os.dup2(nowhere.fileno(), output)
        importlib.import_module("triton.compiler").compile = pool.compile  # type: ignore[attr-defined]
        launch = launcher()
        with launches_made_by(_compiling):
            for each in arguments():
                with contextlib.suppress(Exception):  # a launcher may need values, which tensors on meta do not have
                    launch(*each)
        pool.wait(0)
    finally:
        os._exit(0)


def _compiling(launch: LaunchOf) -> Any:
    return launch.function.run(*launch.arguments, **launch.keywords, grid=launch.grid, warmup=True)


class _Pool:
    """Compiles each kernel in a child, a few at a time."""

    def __init__(self, compile_: Compile, at_once: int, limit: Limit) -> None:
        self._compile, self._at_once, self._limit = compile_, at_once, limit
        self._begun = set[int]()
        self._running = dict[int, float]()  # children, and when they have begun

    def compile(self, source: Any, *arguments: Any, **options: Any) -> None:
        """In place of ``triton.compiler.compile``. Triton launches nothing for None."""
        key = _key(source, options)
        if key in self._begun:
            return
        self._begun.add(key)
        self.wait(self._at_once - 1)
        here = os.getpid()
        child = fork()
        if child == 0:
            end_with_parent(here)
            run_in_child(self._compile, (source, *arguments), options)
        if child is not None:
            self._running[child] = time.monotonic()

    def wait(self, most: int) -> None:
        """Until at most so many run."""
        while len(self._running) > most:
            for child, begun in [*self._running.items()]:
                took = time.monotonic() - begun
                if os.waitpid(child, os.WNOHANG)[0]:
                    self._limit.has_ended(took)
                elif took > self._limit.seconds:
                    end_group(child)
                else:
                    continue
                del self._running[child]
            time.sleep(_SECONDS_BETWEEN_LOOKS)
