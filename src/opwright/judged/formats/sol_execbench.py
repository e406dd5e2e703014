"""SOL-ExecBench: as flashinfer-bench, with sizes that are computed and a function that makes the inputs
(https://github.com/NVIDIA/SOL-ExecBench)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from opwright.contract.own_inputs import Rule
from opwright.judged.stated.definition_tasks import Dialect, tasks_of
from opwright.judged.stated.definitions import json_files
from opwright.judged.task import Task

__all__ = ["NAME", "TAKES", "recognises", "tasks"]

NAME = "sol-execbench"
TAKES = "JSON files, or folders of them: definition.json, workload.jsonl and solutions"
_DIALECT = Dialect(NAME, Rule(NAME, 1e-2, 1e-2), binding="torch")
# Keys that flashinfer-bench does not have.
_OWN = re.compile(r'"(languages|custom_inputs_entrypoint|compile_options|hf_id)"\s*:|"type"\s*:\s*"expr"')


def recognises(paths: Sequence[str]) -> bool:
    return any(_OWN.search(file.read_text(errors="replace")) for file in json_files(paths))


def tasks(paths: Sequence[str], references: Path | None, scratch: Path) -> Iterator[Task | tuple[str, str]]:
    """One task for each definition, with its solutions."""
    return tasks_of(_DIALECT, paths, references, scratch)
