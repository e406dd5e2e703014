"""Judged candidates as reports show them: their names, their worst findings, and the contents of the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.report.format import time_text
from opwright.report.records import Records
from opwright.report.statuses import count_statuses, rank
from opwright.report.verdicts import findings_of
from opwright.results import Status
from opwright.results.judged import Judged, Times

__all__ = ["Entry", "brief", "candidates_of", "names_of"]

# How many parts of a path a name may have.
_FOLDERS = range(2, 8)
# Letters of a message in a table. The whole is in the details.
_LONGEST = 320
_GOOD = (Status.PASS, Status.REFUSED)
_SPEEDUP = "{:.2f} ×".format


@dataclass(frozen=True)
class Column:
    """A column of times: its title, and of some times its value; 0 if that was not measured."""

    title: str
    value: Callable[[Times], float]
    text: Callable[[float], str]


@dataclass(frozen=True)
class Entry:
    """One candidate in a table.

    Attributes:
        kinds: the checks with findings that are neither a pass nor a refusal.
        found: the first line of the finding that determines the verdict, or why there is no verdict.
        cells: of each column of times, the value and its text; "" for a value that was not measured.
    """

    row: Judged
    name: str
    kinds: tuple[str, ...]
    found: str
    cells: tuple[tuple[float | str, str], ...]

    @property
    def searched(self) -> str:
        """The text that a filter searches."""
        row = self.row
        words = (row.candidate, row.task, row.format, row.status, row.by_format, self.found, *self.kinds)
        return " ".join(words).lower()


def names_of(rows: Sequence[Judged]) -> dict[str, str]:
    """Each candidate's file with its folder, as runs are in folders of their own; with more folders, until all names
    differ."""
    names = dict[str, str]()
    for count in _FOLDERS:
        names = {row.candidate: "/".join(Path(row.candidate).parts[-count:]) for row in rows}
        if len(set(names.values())) == len(names):
            break
    return names


def brief(message: str) -> str:
    """A finding's message on one line: of a compiler's output, the first error."""
    lines = message.strip().splitlines() or [""]
    error = next((line for line in lines[1:] if ": error: " in line or ": fatal error: " in line), "")
    if not error:
        text = " ".join(line.strip() for line in lines)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rpartition(' ')[0]} …"
    file, _, rest = error.strip().partition(":")
    begun = lines[0].partition(" [1/")[0].removesuffix(":")
    return f"{begun}: {Path(file).name}:{rest}"


def candidates_of(found: Records) -> dict[str, Any]:
    """The contents of a page about judged candidates."""
    rows = sorted((row for report in found.judged for row in report.rows), key=lambda row: rank(row.status))
    formats = list(dict.fromkeys(row.format for row in rows))
    columns = [c for c in _columns_of(formats) if any(c.value(t) for row in rows if (t := _times(row)))]
    names = names_of(rows)
    entries = [_entry(row, names[row.candidate], columns) for row in rows]
    kinds = Counter(kind for entry in entries for kind in entry.kinds)
    return {
        "candidates": entries,
        "candidate_columns": [column.title for column in columns],
        "candidate_counts": (counts := count_statuses(row.status for row in rows)),
        "candidate_chips": [(s.value, s.word, n) for s, n in counts.items()],
        "kinds": kinds.most_common(),
        "format_name": formats[0] if len(formats) == 1 else "the format",
        "by_format": (by_format := _by_format(rows)),
        "said": [(word or "nothing", sum(counts.values())) for word, counts in by_format.items()],
        "disagreements": sum(len(report.disagreements) for report in found.judged),
        "fast": _fast(found),
        "unread": [each for report in found.judged for each in report.unread],
        "sandboxes": list(dict.fromkeys(report.sandbox for report in found.judged if report.sandbox)),
    }


def _entry(row: Judged, name: str, columns: Sequence[Column]) -> Entry:
    findings = findings_of(row.verdict, separate=True) if row.verdict is not None else []
    kinds = tuple(dict.fromkeys(f.check for f in findings if f.status not in _GOOD))
    worst, times = row.worst, _times(row)
    text = brief(worst.message) if worst is not None else row.reason
    values = [column.value(times) if times else 0.0 for column in columns]
    cells = tuple((v or "", c.text(v) if v else "–") for v, c in zip(values, columns, strict=True))
    return Entry(row, name, kinds, text.strip().partition("\n")[0], cells)


def _times(row: Judged) -> Times | None:
    """The times, if it was timed."""
    return row.times if row.times is not None and not row.times.why_none else None


def _by_format(rows: Sequence[Judged]) -> dict[str, dict[Status, int]]:
    """What the format says → opwright's verdicts. Empty if the format says nothing of any candidate."""
    if not any(row.by_format for row in rows):
        return {}
    said = sorted({row.by_format for row in rows}, key=lambda word: (not word, word))
    return {word: count_statuses(row.status for row in rows if row.by_format == word) for word in said}


def _fast(found: Records) -> list[tuple[str, float]]:
    """KernelBench's fast_p, of a single report with times."""
    if len(found.judged) != 1 or not any(_times(row) for row in found.judged[0].rows):
        return []
    return [(f"fast_{p}", found.judged[0].fast(p)) for p in (0, 1, 2)]


def _columns_of(formats: Sequence[str]) -> list[Column]:
    scored = [Column("SOL score", lambda times: times.sol_score, "{:.2f}".format)]
    return [*_COLUMNS, *(scored if "sol-execbench" in formats else [])]


_COLUMNS = (
    Column("time", lambda times: times.us, time_text),
    Column("× eager", lambda times: times.speedup, _SPEEDUP),
    Column("× torch.compile", lambda times: times.compiled_us / times.us, _SPEEDUP),
    Column("× max-autotune", lambda times: times.tuned_us / times.us, _SPEEDUP),
    Column("of the limit", lambda times: times.limit_us / times.us, "{:.0%}".format),
)
