"""Tables that other packages add to, by entry points. They are read when a table is first searched or listed."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar

__all__ = ["Extensible"]

_logger = logging.getLogger("opwright")
Row = TypeVar("Row")


class Extensible(Mapping[str, Row], Generic[Row]):
    """A table of opwright's own rows, and of those that installed packages add.

    Args:
        own: opwright's rows.
        group: the group of entry points, such as ``opwright.checks``. Each names an object that becomes a row.
        read: returns the row that an entry point's name and object stand for; raises TypeError or ValueError with what
            the object must be.
        before: added rows stand before this one; by default, at the end.
    """

    def __init__(
        self, own: Mapping[str, Row], group: str, read: Callable[[str, Any], tuple[str, Row]], before: str = ""
    ) -> None:
        self.own, self._group, self._read, self._before = own, group, read, before

    @cached_property
    def added(self) -> Mapping[str, Row]:
        """The rows of other packages. One that cannot be loaded is left out, with a line that says why."""
        found = dict[str, Row]()
        for entry in importlib.metadata.entry_points(group=self._group):
            try:
                name, row = self._read(entry.name, entry.load())
                if name in self.own or name in found:
                    raise ValueError(f"its name must be new, got {name!r}")
            except Exception as error:  # importing another package may raise anything
                package = entry.dist.name if entry.dist is not None else entry.value
                _logger.warning(
                    "the entry point %r of %s in %s is left out: %s: %s → correct or uninstall %s",
                    entry.name, package, self._group, type(error).__name__, str(error).partition("\n")[0], package,
                )  # fmt: skip
                continue
            found[name] = row
        return found

    @cached_property
    def _rows(self) -> dict[str, Row]:
        rows = dict[str, Row]()
        for name, row in self.own.items():
            rows |= self.added if name == self._before else {}
            rows[name] = row
        return {**rows, **self.added} if not self._before else rows

    def __getitem__(self, name: str) -> Row:
        return self.own[name] if name in self.own else self.added[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)
