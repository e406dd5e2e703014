"""Tasks in an ``.ini`` file: a section for each, with the files of the reference and of a candidate."""

from __future__ import annotations

import configparser
from collections.abc import Iterator, Sequence
from pathlib import Path

from opwright.judged.task import Candidate, Task

NAME = "ini-tasks"
TAKES = "an .ini file with a section for each task"


def recognises(paths: Sequence[str]) -> bool:
    return all(path.endswith(".ini") for path in paths)


def tasks(paths: Sequence[str], references: Path | None, scratch: Path) -> Iterator[Task | tuple[str, str]]:
    for path in map(Path, paths):
        parser = configparser.ConfigParser()
        parser.read(path)
        for name in parser.sections():
            section, folder = parser[name], path.resolve().parent
            if "candidate" not in section:
                yield f"{path}, [{name}]", "it must name a candidate"
                continue
            candidate = Candidate(f"{name}_candidate", folder / section["candidate"], name)
            yield Task(name, NAME, folder / section["reference"], name, (candidate,))
