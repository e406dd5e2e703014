"""The table of the formats: one file each, one line each. The first that recognises a path reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from opwright.errors import TargetError
from opwright.judged.formats import flashinfer_bench, gpu_mode, kernelbench, pair, sol_execbench
from opwright.judged.task import Task

__all__ = ["FORMATS", "Format", "read_tasks"]


class Format(Protocol):
    """What the module of a format has."""

    NAME: str
    # What its paths are, for messages.
    TAKES: str

    @staticmethod
    def recognises(paths: Sequence[str]) -> bool:
        """Whether these paths are of the format. Reads names and text, and runs nothing."""

    @staticmethod
    def tasks(paths: Sequence[str], references: Path | None, scratch: Path) -> Iterator[Task | tuple[str, str]]:
        """The tasks of the paths, each with its candidates; a path and a reason for what is none. Files that are made
        of them, such as the sources in a JSON file, are written below ``scratch``."""


_MODULES = (pair, gpu_mode, kernelbench, sol_execbench, flashinfer_bench)
FORMATS: dict[str, Format] = {module.NAME: module for module in _MODULES}  # type: ignore[misc]


def read_tasks(
    paths: Sequence[str], scratch: Path, format: str = "", references: Path | None = None
) -> tuple[list[Task], list[tuple[str, str]]]:
    """The tasks of some paths, and the paths that are none, each with the reason.

    Raises:
        TargetError: the format does not exist, or no format takes the paths.
    """
    if format and format not in FORMATS:
        raise TargetError(
            f"format must be {', '.join(FORMATS)}, got {format!r}", fix="leave it out to have it recognised"
        )
    chosen = [FORMATS[format]] if format else [f for f in FORMATS.values() if f.recognises(paths)]
    if not chosen:
        known = "; ".join(f"{name}: {f.TAKES}" for name, f in FORMATS.items())
        raise TargetError(f"{' '.join(paths)} is a task of no format", fix=f"pass one of these. {known}")
    return _sorted_out(chosen[0].tasks(paths, references, scratch))


def _sorted_out(found: Iterable[Task | tuple[str, str]]) -> tuple[list[Task], list[tuple[str, str]]]:
    tasks, unread = list[Task](), list[tuple[str, str]]()
    for each in found:
        tasks.append(each) if isinstance(each, Task) else unread.append(each)
    return tasks, unread
