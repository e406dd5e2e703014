"""A range of a kernel's cases, for one of several processes that examine them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["CaseRange"]

T = TypeVar("T")


@dataclass(frozen=True)
class CaseRange:
    """The range ``number`` of ``count``, from 0. Ranges follow each other, and their lengths differ by one at most."""

    number: int
    count: int

    def of(self, cases: Sequence[T]) -> Sequence[T]:
        """The cases that belong to it."""
        first, end = (len(cases) * n // self.count for n in (self.number, self.number + 1))
        return cases[first:end]

    def __str__(self) -> str:
        return f"{self.number + 1} of {self.count}"
