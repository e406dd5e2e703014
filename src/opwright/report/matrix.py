"""Verdicts as a matrix of operators × languages, which a report shows before any list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opwright.report.statuses import LOOKS, count_statuses
from opwright.results import Status, Verdict

__all__ = ["Cell", "Column", "Matrix", "make_matrix"]

# The reference's name in verdicts; its column is the last one, in whatever language it is written.
REFERENCE = "reference"


@dataclass(frozen=True)
class Column:
    """A language, and a device of the kernels that ran; empty if none ran."""

    language: str
    device: str


@dataclass(frozen=True)
class Cell:
    """The numbers of an operator's kernels in one language by status, the worst first; empty if it has none."""

    counts: tuple[tuple[Status, int], ...] = ()

    @classmethod
    def of(cls, statuses: Iterable[Status]) -> Cell:
        """The cell of kernels with these statuses."""
        return cls(tuple(count_statuses(statuses).items()))

    @property
    def status(self) -> Status | None:
        """The worst status that occurred; a refusal only if nothing ran."""
        return self.counts[0][0] if self.counts else None

    @property
    def marks(self) -> tuple[tuple[Status, str], ...]:
        """``✓``, ``✗`` and ``✓``, ``3✓`` and ``1–``: with counts unless all of them are one."""
        alone = all(n == 1 for _, n in self.counts)
        return tuple((status, f"{'' if alone else n}{LOOKS[status].mark}") for status, n in self.counts)

    def __str__(self) -> str:
        return " ".join(mark for _, mark in self.marks)


@dataclass(frozen=True)
class Matrix:
    """``rows`` has an operator's name and one cell for each column. ``namespace`` is left out of the names."""

    namespace: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]

    @property
    def corner(self) -> str:
        """The heading of the operators' names."""
        return self.namespace or "operator"

    @property
    def several_devices(self) -> bool:
        """Whether there is more than one device."""
        return len({c.device for c in self.columns if c.device}) > 1


def make_matrix(verdicts: Iterable[Verdict]) -> Matrix:
    """The matrix, in the order of the verdicts. A language has a column for each device that it ran on.

    A kernel that could not run is counted in its language's first column, whichever device it was written for.
    """
    verdicts = list(verdicts)
    columns = _columns(verdicts)
    operators = list(dict.fromkeys(v.op for v in verdicts))
    namespace = _common_namespace(operators)
    cells: dict[tuple[str, Column], list[Status]] = {}
    for verdict in verdicts:
        cells.setdefault((verdict.op, _column_of(verdict, columns)), []).append(verdict.status)
    rows = tuple(
        (op.removeprefix(namespace), tuple(Cell.of(cells.get((op, column), ())) for column in columns))
        for op in operators
    )
    return Matrix(namespace, columns, rows)


def _columns(verdicts: Sequence[Verdict]) -> tuple[Column, ...]:
    devices: dict[str, list[str]] = {}
    for verdict in verdicts:
        known = devices.setdefault(_language(verdict), [])
        if verdict.status is not Status.REFUSED and verdict.device not in known:
            known.append(verdict.device)
    languages = sorted(devices, key=lambda language: language == REFERENCE)
    return tuple(Column(language, device) for language in languages for device in devices[language] or [""])


def _column_of(verdict: Verdict, columns: Sequence[Column]) -> Column:
    of_language = [c for c in columns if c.language == _language(verdict)]
    return next((c for c in of_language if c.device == verdict.device), of_language[0])


def _language(verdict: Verdict) -> str:
    return REFERENCE if verdict.kernel == REFERENCE else verdict.backend


def _common_namespace(operators: Sequence[str]) -> str:
    """``gallery::`` if every operator is in it."""
    namespaces = {op[: op.find("::") + 2] if "::" in op else "" for op in operators}
    return namespaces.pop() if len(namespaces) == 1 else ""
