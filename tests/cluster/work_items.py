"""Work items that harm the machine which runs them, or look at it."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from opwright.sweep.work_item import Needs

__all__ = ["Answer", "FillsTheDisk", "KillsItsMachine"]


@dataclass(frozen=True)
class Answer:
    """What a work item gives, or why it gives nothing."""

    host: str = ""
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class _Item:
    key = "one"
    name = "one"
    needs = Needs()
    kind = Answer

    def without_result(self, why: str, remedy: str) -> Answer:
        return Answer("", why, remedy)


@dataclass(frozen=True)
class KillsItsMachine(_Item):
    """Ends Ray's own process on the machine, and so everything of it."""

    def run(self, on_step: Callable[[str], None]) -> Answer:
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()  # Ray leaves such a worker alone
        return Answer("survived")


@dataclass(frozen=True)
class FillsTheDisk(_Item):
    """Finds a full disk the first time that it runs."""

    marker: Path

    def run(self, on_step: Callable[[str], None]) -> Answer:
        if not self.marker.exists():
            self.marker.touch()
            raise OSError(errno.ENOSPC, "No space left on device")
        return Answer("has space")
