"""Two functions: ``reference.py:fn candidate.py:fn …``. The reference's file also makes the inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from opwright.errors import TargetError
from opwright.judged.task import Candidate, Task

__all__ = ["NAME", "TAKES", "recognises", "tasks"]

NAME = "pair"
TAKES = "reference.py:function, then candidate.py:function, where reference.py defines get_inputs()"


def recognises(paths: Sequence[str]) -> bool:
    return len(paths) > 1 and all(".py:" in path for path in paths)


def tasks(paths: Sequence[str], references: Path | None, scratch: Path) -> Iterator[Task | tuple[str, str]]:
    """One task, of the first path; the others are its candidates."""
    split = [path.rpartition(":") for path in paths]
    for (file, colon, name), path in zip(split, paths, strict=True):
        if not colon or not name.isidentifier() or not Path(file).is_file():
            raise TargetError(
                f"{path} must be a Python file and a function in it, got {path!r}", fix="write file.py:name"
            )
    (file, _, name), *others = split
    named = [f"{Path(f).stem}_{n}" for f, _, n in others]
    candidates = [
        Candidate(own if named.count(own) == 1 else f"{own}_{i}", Path(f).resolve(), n)
        for i, ((f, _, n), own) in enumerate(zip(others, named, strict=True))
    ]
    yield Task(name, NAME, Path(file).resolve(), name, tuple(candidates))
