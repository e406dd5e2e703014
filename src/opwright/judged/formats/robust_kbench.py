"""robust-kbench: ``func_forward.py`` and ``config_forward.json`` in a folder; a kernel is a ``.cu`` file that exports
``forward`` (https://github.com/SakanaAI/robust-kbench).

A backward has ``func_backward.py``, whose ``AutogradFunction`` calls what a kernel exports as ``backward``.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opwright.contract.own_inputs import Rule
from opwright.errors import TargetError
from opwright.judged.names import unique
from opwright.judged.stated.robust_kbench_texts import BACKWARD, FORWARD, Direction
from opwright.judged.task import Candidate, Task

__all__ = ["NAME", "TAKES", "recognises", "tasks"]

NAME = "robust-kbench"
TAKES = ".cu files, or folders of them, with func_forward.py or func_backward.py; --references names the tasks"
_FLAGS = ["-O3", "--use_fast_math"]


def recognises(paths: Sequence[str]) -> bool:
    files = list(_kernels(paths))
    return bool(files) and any(_exports(file, _direction_of(file)) for file in files)


def tasks(paths: Sequence[str], references: Path | None, scratch: Path) -> Iterator[Task | tuple[str, str]]:
    """One task for each folder, with its kernels."""
    by_task: dict[tuple[Path, Direction], list[Path]] = {}
    for file in _kernels(paths):
        direction = _direction_of(file)
        folder = _task_of(file, references, direction.file)
        if not _exports(file, direction):
            yield str(file), f"it must export {direction.name} with PYBIND11_MODULE"
        elif folder is None:
            yield str(file), f"no {direction.file} belongs to it: name the folder of tasks with --references"
        else:
            by_task.setdefault((folder.resolve(), direction), []).append(file)
    names = set[str]()
    for (folder, direction), files in by_task.items():
        own = f"{folder.parent.name}_{folder.name}" + ("_backward" if direction is BACKWARD else "")
        try:
            yield _task(folder, direction, files, scratch, unique(own, names))
        except TargetError as error:
            yield str(folder), str(error)


def _kernels(paths: Sequence[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        for file in sorted(path.rglob("*.cu")) if path.is_dir() else [path]:
            if file.suffix == ".cu" and file.is_file():
                yield file.resolve()


def _direction_of(file: Path) -> Direction:
    return BACKWARD if "backward" in (file.stem, file.parent.name) else FORWARD


def _exports(file: Path, direction: Direction) -> bool:
    text = file.read_text(errors="replace")
    return "PYBIND11_MODULE" in text and f'"{direction.name}"' in text


def _task_of(file: Path, references: Path | None, task: str) -> Path | None:
    """The folder of a kernel's task: its own, or the one below ``references`` that is called as a folder above it."""
    if (file.parent / task).is_file():
        return file.parent
    if references is None:
        return None
    if (references / task).is_file():
        return references
    found = {f.parent.name: f.parent for f in sorted(references.rglob(task))}
    return next((found[parent.name] for parent in file.parents if parent.name in found), None)


def _task(folder: Path, direction: Direction, files: Sequence[Path], scratch: Path, name: str) -> Task:
    """The task of a folder.

    Raises:
        TargetError: its files are missing or malformed.
    """
    text = (folder / direction.file).read_text()
    defined = _definitions(direction.file, text)
    for needed in direction.needs:
        if needed not in defined:
            raise TargetError(f"{direction.file} must define {needed!r}, got {sorted(defined)}", fix="correct the file")
    own = folder / f"config_{direction.name}.json"
    settings = _settings(own if own.is_file() else folder / "config_forward.json")
    inputs, constructor = settings("single", 0)
    inputs = {**_defaults(defined["get_inputs"]), **inputs}
    constructor = {**_defaults(_constructor_of(defined["Model"])), **constructor}
    integers = {key: value for key, value in {**inputs, **constructor}.items() if type(value) is int}
    added = direction.added.format(
        constants="".join(f"{key} = {value}\n" for key, value in integers.items()),
        inputs=_keywords(inputs, integers), constructor=_keywords(constructor, integers),
    )  # fmt: skip
    into = scratch / f"sources_{name}"
    reference = into / "reference.py"
    into.mkdir(parents=True, exist_ok=True)
    reference.write_text(text + added)
    names = set[str]()
    cases = [
        {key: value for part in settings("multi", number) for key, value in part.items() if type(value) is int}
        for number in range(2)
    ]
    candidates = tuple(_candidate(file, direction, text + added, into, names) for file in files)
    return Task(
        name, NAME, reference, "TaskModel", candidates,
        inputs="task_inputs", constructor="task_constructor", rule=Rule(NAME, 1e-5, 1e-5),
        cases=tuple(case for case in cases if case), origin=folder / direction.file,
    )  # fmt: skip


def _candidate(file: Path, direction: Direction, task: str, into: Path, names: set[str]) -> Candidate:
    """A kernel in a folder of its own, and a module that calls it."""
    name = unique(file.stem if file.stem != "kernel" else file.parent.parent.name, names)
    folder = into / f"{name}_files"
    folder.mkdir(exist_ok=True)
    (folder / file.name).write_text(file.read_text(errors="replace"))
    adapter = into / f"{name}.py"
    entry = f"{file.name}::{direction.name}"
    adapter.write_text(task + direction.candidate.format(folder=str(folder), entry=entry, flags=_FLAGS))
    return Candidate(name, adapter, "Candidate", language="cuda", origin=file)


def _definitions(file: str, text: str) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    try:
        return {n.name: n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    except SyntaxError as error:
        raise TargetError(f"{file}:{error.lineno}: it must be Python, got {error.msg}", fix="correct it") from None


def _constructor_of(model: ast.AST) -> ast.AST | None:
    return next((n for n in ast.walk(model) if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)


def _defaults(function: ast.AST | None) -> dict[str, Any]:
    """The integers that a function has as defaults."""
    if not isinstance(function, ast.FunctionDef):
        return {}
    named = function.args.args[len(function.args.args) - len(function.args.defaults) :]
    values = {a.arg: d.value for a, d in zip(named, function.args.defaults, strict=True) if isinstance(d, ast.Constant)}
    return {name: value for name, value in values.items() if type(value) is int}


def _keywords(values: Mapping[str, Any], constants: Mapping[str, int]) -> str:
    return ", ".join(f"{key}={key if key in constants else repr(value)}" for key, value in values.items())


def _settings(file: Path) -> Any:
    """A function that returns the arguments of ``get_inputs`` and of ``Model`` of one configuration."""
    try:
        stated = json.loads(file.read_text())
        parts = {key: [dict(each) for each in value] for key, value in dict(stated).items() if key.endswith("_configs")}
    except (OSError, ValueError, TypeError) as error:
        raise TargetError(f"{file.name} must have lists of objects, got {error}", fix="correct the file") from None

    def setting(kind: str, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        def part(name: str) -> dict[str, Any]:
            listed = parts.get(f"{kind}_{name}_configs") or [{}]
            return listed[min(number, len(listed) - 1)]

        return {**part("input"), **part("shared")}, {**part("init"), **part("shared")}

    return setting
