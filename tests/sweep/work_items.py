"""Work items for tests of executors and journals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from opwright.sweep.work_item import Needs

__all__ = ["Square", "Squared"]


@dataclass(frozen=True)
class Squared:
    value: int


@dataclass
class Square:
    """Squares a number; ``ran`` counts how often."""

    number: int
    needs: Needs = field(default_factory=Needs)
    raises: type[BaseException] | None = None
    ran: int = 0
    thread: int = 0

    kind = Squared

    @property
    def name(self) -> str:
        return f"square of {self.number}"

    @property
    def key(self) -> str:
        return f"square-{self.number}"

    def run(self, on_step: Callable[[str], None]) -> Squared:
        self.ran += 1
        self.thread = threading.get_ident()
        on_step("multiplies")
        if self.raises is not None:
            raise self.raises
        return Squared(self.number**2)

    def without_result(self, why: str, remedy: str) -> Squared:
        return Squared(-1)
