"""The results of the self-test: which planted faults were caught, and which right kernels were found fault with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Planted", "SelfTest"]


@dataclass(frozen=True)
class Planted:
    """One kernel of the self-test, and what became of it.

    Attributes:
        planted: whether the kernel has a fault.
        caught_by: the checks that found fault with it, right or not.
        refused: why it could not run here.
        message: the first finding.
        lost: whether no machine of a cluster could finish its check.
    """

    defect: str
    backend: str
    device: str
    planted: bool
    caught_by: tuple[str, ...]
    time_s: float
    refused: str = ""
    message: str = ""
    lost: bool = False


@dataclass(frozen=True)
class SelfTest:
    """The result of the self-test on one machine; ``to_json`` is what ``--json`` writes.

    Attributes:
        partial: how much was checked before it was interrupted; empty if all was.
    """

    machine: dict[str, Any]
    results: tuple[Planted, ...]
    seconds: float
    partial: str = ""

    def __repr__(self) -> str:
        counts = f"{len(self.missed)} missed, {len(self.false_alarms)} false alarms"
        return f"<SelfTest: {len(self.results)} kernels, {counts}>"

    @property
    def missed(self) -> list[Planted]:
        """Planted faults that no check found."""
        return [r for r in self.results if r.planted and not r.refused and not r.caught_by]

    @property
    def false_alarms(self) -> list[Planted]:
        """Right kernels that a check found fault with."""
        return [r for r in self.results if not r.planted and not r.refused and r.caught_by]

    @property
    def refused(self) -> list[Planted]:
        """Kernels that cannot run here."""
        return [r for r in self.results if r.refused]

    @property
    def lost(self) -> list[Planted]:
        """Kernels whose check could not be finished: no memory, or no machine of a cluster."""
        return [r for r in self.results if r.lost]

    @property
    def passed(self) -> bool:
        """Whether every fault was caught, no right kernel found fault with, and every check finished."""
        return not (self.partial or self.missed or self.false_alarms or self.lost) and bool(self.results)

    def to_json(self) -> dict[str, Any]:
        """The result as plain lists, dictionaries, strings and numbers."""
        from opwright.results.json_form import to_json

        ran = [r for r in self.results if not r.refused]
        planted = [r for r in ran if r.planted]
        return {
            "schema": "opwright.selftest/1",
            "machine": self.machine,
            **({"partial": self.partial} if self.partial else {}),
            "planted": len(planted),
            "caught": len(planted) - len(self.missed),
            "correct": len(ran) - len(planted),
            "false_alarms": len(self.false_alarms),
            "refused": len(self.refused),
            "seconds": self.seconds,
            "rows": [to_json(r) for r in self.results],
        }
