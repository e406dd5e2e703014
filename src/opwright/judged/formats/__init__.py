"""The table of the formats: one file each, one line each. The first that recognises a path reads it.

Other packages may add some, which are asked after opwright's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from opwright.entry_points import Extensible
from opwright.errors import TargetError
from opwright.judged.formats import (
    backend_bench,
    flashinfer_bench,
    gpu_mode,
    kernelbench,
    kernelbench_com,
    pair,
    robust_kbench,
    sol_execbench,
    tritonbench,
)
from opwright.judged.packages import missing_package
from opwright.judged.task import Candidate, Task

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


_MODULES = (
    pair,
    backend_bench,
    tritonbench,
    gpu_mode,
    kernelbench_com,
    kernelbench,
    robust_kbench,
    sol_execbench,
    flashinfer_bench,
)
_OWN: dict[str, Format] = {module.NAME: module for module in _MODULES}  # type: ignore[misc]


def _read(name: str, format: Any) -> tuple[str, Format]:
    missing = [each for each in ("NAME", "TAKES", "recognises", "tasks") if not hasattr(format, each)]
    if missing:
        raise TypeError(f"it must have NAME, TAKES, recognises and tasks, got none of {', '.join(missing)}")
    return format.NAME, format


FORMATS = Extensible(_OWN, "opwright.formats", _read)


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
        if absent := [path for path in paths if not Path(path).exists()]:
            raise TargetError(f"a task must be a file or a folder that exists, got {absent[0]!r}", fix="name another")
        known = "; ".join(f"{name}: {f.TAKES}" for name, f in FORMATS.items())
        raise TargetError(f"{' '.join(paths)} is a task of no format", fix=f"pass one of these. {known}")
    found, unread = _sorted_out(chosen[0].tasks(paths, references, scratch))
    said = {path for path, _ in unread}
    absent = [path for path in paths if path not in said and not any(Path(p).exists() for p in _files_named(path))]
    return found, [*unread, *((path, "it does not exist") for path in absent)]


def _files_named(path: str) -> tuple[str, str]:
    """A path as it is, and without a function in the file: ``ours.py:softmax``."""
    return path, path.rpartition(":")[0] or path


def _sorted_out(found: Iterable[Task | tuple[str, str]]) -> tuple[list[Task], list[tuple[str, str]]]:
    tasks, unread = list[Task](), list[tuple[str, str]]()
    for each in found:
        if not isinstance(each, Task):
            unread.append(each)
            continue
        missing = {candidate.name: _missing_package(candidate) for candidate in each.candidates}
        for candidate in each.candidates:
            if package := missing[candidate.name]:
                reason = f"the module {package!r} must be installed\n  → install its package"
                unread.append((str(candidate.origin or candidate.file), reason))
        tasks.append(dataclasses.replace(each, candidates=tuple(c for c in each.candidates if not missing[c.name])))
    return tasks, unread


def _missing_package(candidate: Candidate) -> str:
    # What is published under another suffix is copied; a file that is made of one in JSON imports opwright alone.
    file = next((f for f in (candidate.origin, candidate.file) if f is not None and f.suffix == ".py"), None)
    return missing_package(file.read_text(errors="replace"), file) if file is not None else ""
