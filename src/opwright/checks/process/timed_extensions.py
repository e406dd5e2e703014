"""The time in which torch builds a C++ extension, which a file that somebody else wrote does when it is imported."""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

__all__ = ["report_builds"]

# How often the time of a build is reported, in seconds: less often than a step may take.
_EVERY = 5.0


def report_builds(on_time: Callable[[float], None], every: float = _EVERY) -> None:
    """From now on, in this process, report the seconds that ``load`` and ``load_inline`` of torch take, while they run:
    a build may take longer than a step of a check, and is not the kernel's time."""
    extensions: Any = importlib.import_module("torch.utils.cpp_extension")
    for name in ("load", "load_inline"):
        setattr(extensions, name, _reported(getattr(extensions, name), on_time, every))


def _reported(build: Callable[..., Any], on_time: Callable[[float], None], every: float) -> Callable[..., Any]:
    @functools.wraps(build)
    def run(*arguments: Any, **options: Any) -> Any:
        # In a thread, so that this one, which alone talks to the checker, can do so meanwhile.
        with ThreadPoolExecutor(1) as pool:
            building, is_done = pool.submit(build, *arguments, **options), False
            while not is_done:
                started = time.monotonic()
                is_done = bool(wait([building], every).done)
                on_time(time.monotonic() - started)
        return building.result()

    return run
