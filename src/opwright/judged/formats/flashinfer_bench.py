"""flashinfer-bench: definitions, workloads and solutions in JSON (https://github.com/flashinfer-ai/flashinfer-bench)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from opwright.contract.own_inputs import Rule
from opwright.judged.stated.definition_tasks import Dialect, tasks_of
from opwright.judged.stated.definitions import json_files
from opwright.judged.task import Task

__all__ = ["NAME", "TAKES", "recognises", "tasks"]

NAME = "flashinfer-bench"
TAKES = "JSON files, or folders of them: definitions, workloads (.jsonl) and solutions"
_DIALECT = Dialect(NAME, Rule(NAME, 1e-2, 1e-2), binding="tvm-ffi")


def recognises(paths: Sequence[str]) -> bool:
    return any('"destination_passing_style"' in text or '"reference"' in text for text in _texts(paths))


def tasks(paths: Sequence[str], references: Path | None, scratch: Path) -> Iterator[Task | tuple[str, str]]:
    """One task for each definition, with its solutions."""
    return tasks_of(_DIALECT, paths, references, scratch)


def _texts(paths: Sequence[str]) -> Iterator[str]:
    for file in json_files(paths):
        yield file.read_text(errors="replace")
