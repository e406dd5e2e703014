"""Triton's compilations with a limit of their own: each first runs in a child process, which can be ended.

What the child compiles is in Triton's cache then, from which this process takes it. Where no child can be made, or the
child fails, this process compiles as ever.
"""

from __future__ import annotations

import importlib
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from opwright.errors import CompileTimeoutError
from opwright.workers.forking import end_group, fork

__all__ = ["Limit", "limit_compilations", "run_in_child", "within"]


# So many times as long as the longest compilation that has ended may another one take.
_TIMES_AS_LONG = 4.0


@dataclass
class Limit:
    """How long a compilation may take: much longer than those before, but not without an end.

    Attributes:
        least: the seconds that each may take.
        most: those that the first one may take, and that none exceeds.
    """

    least: float
    most: float
    longest: float = 0.0

    @property
    def seconds(self) -> float:
        return min(self.most, max(self.least, _TIMES_AS_LONG * self.longest)) if self.longest else self.most

    def has_ended(self, after: float) -> None:
        """A compilation has ended by itself, after so many seconds."""
        self.longest = max(self.longest, after)


def limit_compilations(
    compile_: Callable[..., Any],
    limit: Limit,
    on_end: Callable[[float], None],
    wait: Callable[..., None] = lambda *arguments, **options: None,
) -> None:
    """From now on, in this process, stop compilations of Triton's that take much longer than those before.

    Args:
        compile_: what compiles, ``triton.compiler.compile`` or what stands for it.
        on_end: called after each with the seconds that it took.
        wait: called before each with its arguments, and not limited: another process may be compiling the same.

    Raises:
        CompileTimeoutError: in the launches of kernels whose compilation was stopped.
    """

    def timed(*arguments: Any, **options: Any) -> Any:
        start = time.monotonic()
        wait(*arguments, **options)
        waited = time.monotonic()
        try:
            found = within(limit.seconds, compile_, *arguments, **options)
            limit.has_ended(time.monotonic() - waited)
            return found
        finally:
            on_end(time.monotonic() - start)

    compiler: Any = importlib.import_module("triton.compiler")
    compiler.compile = timed  # from which a kernel takes it when it is first launched


def within(seconds: float, compile_: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a function returns that takes its result from a cache the second time; a child process calls it first.

    Raises:
        CompileTimeoutError: the child took longer.
    """
    # A lock that another thread holds would stay locked in the child, and that of threads of a compiler's pool.
    if threading.current_thread() is threading.main_thread() and (child := fork()) is not None:
        if child == 0:
            run_in_child(compile_, arguments, options)
        if not _ends(child, seconds):
            raise CompileTimeoutError(f"compiling takes more than {seconds:.0f} s")
    return compile_(*arguments, **options)


def run_in_child(compile_: Callable[..., Any], arguments: Any, options: Any) -> NoReturn:
    """Call a function in this child, and end it."""
    try:
        os.setsid()  # with the assemblers that it starts
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        compile_(*arguments, **options)
    finally:
        os._exit(0)


def _ends(child: int, seconds: float) -> bool:
    """Wait for a child, and end it with its own children if it takes longer."""
    descriptor = os.pidfd_open(child)
    try:
        has_ended = bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)
        # Also what it has started, and what an exception of this process, such as an interrupt, leaves behind.
        end_group(child)
    return has_ended
