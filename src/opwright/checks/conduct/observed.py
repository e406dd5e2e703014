"""What is observed of a kernel's process from before the kernel is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field

from opwright.checks.conduct.lookups import Lookups
from opwright.checks.conduct.replaced import Functions

__all__ = ["Observed", "begin", "process"]


@dataclass
class Observed:
    """The functions as they were at first, and what was looked up since."""

    functions: Functions = field(default_factory=Functions)
    lookups: Lookups = field(default_factory=Lookups)


# Of this process; None if no check of it asks.
process: Observed | None = None


def begin() -> None:
    """Observe this process from now on."""
    global process
    process = Observed()
