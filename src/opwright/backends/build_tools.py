"""The tools that build kernels in this process: the machine, the cache, the log."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass

from opwright.backends.supplier import SocketSupplier
from opwright.cache import ArtifactCache
from opwright.machine import Machine, this_machine

__all__ = ["BuildTools", "build_tools"]


@dataclass(frozen=True)
class BuildTools:
    """What a backend builds with: the machine, the cache, and a function that logs a message for the user."""

    machine: Machine
    cache: ArtifactCache
    notify: Callable[[str], None]


@functools.cache
def build_tools() -> BuildTools:
    """Made on first use and kept for the process."""
    machine = this_machine()
    supplier = SocketSupplier(machine.supplier) if machine.supplier is not None else None
    return BuildTools(machine, ArtifactCache(machine.cache_dir / "artifacts", supplier), _logger().info)


def _logger() -> logging.Logger:
    """The ``opwright`` logger. It writes to stderr unless the application has added a handler.

    A first compilation takes seconds, and its message states what the user waits for.
    """
    logger = logging.getLogger("opwright")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("opwright: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    return logger
