"""An edit: one small change of a source text, which makes a mutant of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Edit", "distinct"]


@dataclass(frozen=True)
class Edit:
    """A replacement in a text.

    Attributes:
        start, end: the replaced part, as offsets into the text.
        new: what replaces it; it has as many line breaks as the replaced part.
        operator: the kind of change, such as ``bound``.
    """

    start: int
    end: int
    new: str
    operator: str

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]

    def line(self, text: str) -> int:
        """The line of the text at which the change begins, from 1."""
        return text.count("\n", 0, self.start) + 1

    def diff(self, text: str) -> str:
        """The changed lines: those of the text with ``-``, those of the mutant with ``+``."""
        first, last = self.line(text) - 1, text.count("\n", 0, self.end) + 1
        before, after = (t.splitlines()[first:last] for t in (text, self.apply(text)))
        return "\n".join(
            [f"- {line.strip()}" for line in before] + [f"+ {line.strip()}" for line in after if line.strip()]
        )


def distinct(edits: Iterable[Edit], text: str) -> list[Edit]:
    """The edits in the order of the text, without those that change nothing or the same as another one."""
    found: dict[str, Edit] = {}
    for edit in sorted(edits, key=lambda e: (e.start, e.end, e.new)):
        found.setdefault(edit.apply(text), edit)
    found.pop(text, None)
    return list(found.values())
