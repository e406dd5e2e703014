"""How statuses are shown: words, marks and styles. The order in every list is that of ``Status``: the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from opwright.results import Status

__all__ = ["GROUPED", "LOOKS", "ONE_BY_ONE", "Look", "count_statuses", "rank"]


@dataclass(frozen=True)
class Look:
    """How a status is shown.

    Attributes:
        word: as in "3 failed".
        meaning: the status in one sentence.
        mark: one cell wide in a terminal, and distinct without colour.
        style: the style of rich for a terminal. The page has its colours in ``page.css.jinja``.
        emoji: the mark in a comment on GitHub, which has no colours of its own.
    """

    word: str
    meaning: str
    mark: str
    style: str
    emoji: str


_MEANINGS = {
    Status.FAIL: ("a check found a defect", "bold red", "❌"),
    Status.INCONCLUSIVE: (
        "a step did not end in time, or a check itself failed: neither right nor wrong is known",
        "bold magenta",
        "⏳",
    ),
    Status.THIN: ("nothing wrong was found, but too little ran to say that it passed", "bold cyan", "🌘"),
    Status.WARNING: ("ordinary results are right, but something else needs attention", "bold yellow", "⚠️"),
    Status.PASS: ("every check passed", "bold green", "✅"),
    Status.REFUSED: ("this machine lacks something that the kernel needs", "dim", "➖"),
}
LOOKS = {
    status: Look(status.word, meaning, status.mark, style, emoji)
    for status, (meaning, style, emoji) in _MEANINGS.items()
}

# Findings of these are shown one by one, each with its case and command, and no list hides their kernels …
ONE_BY_ONE = (Status.FAIL, Status.INCONCLUSIVE)
# … and findings of these are grouped by their text: sixty kernels often have the same warning.
GROUPED = (Status.THIN, Status.WARNING)


def rank(status: Status) -> int:
    """The place of a status in every list: the worst has 0."""
    return list(Status).index(status)


def count_statuses(statuses: Iterable[Status]) -> dict[Status, int]:
    """The number of each status, the worst first, without zeros."""
    found = Counter(statuses)
    return {status: found[status] for status in Status if found[status]}
