"""The tools that kernels are built with in this process: its machine, its cache, its log."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass

from opwright.cache import ArtifactCache
from opwright.machine import Machine, this_machine

__all__ = ["BuildTools", "build_tools"]


@dataclass(frozen=True)
class BuildTools:
    """What a backend builds with: the machine, the cache, and a way to tell the user what goes on."""

    machine: Machine
    cache: ArtifactCache
    notify: Callable[[str], None]


@functools.cache
def build_tools() -> BuildTools:
    """Made on first use and kept for the process."""
    machine = this_machine()
    return BuildTools(machine, ArtifactCache(machine.cache_dir / "artifacts"), _logger().info)


def _logger() -> logging.Logger:
    """The ``opwright`` logger, which speaks on stderr unless the application gave it a handler.

    A first compile takes seconds; someone who waits should know for what.
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
