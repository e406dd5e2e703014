"""robust-kbench: ``func_forward.py`` and ``config_forward.json`` in a folder; a kernel is a ``.cu`` file that exports
``forward`` (https://github.com/SakanaAI/robust-kbench)."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opwright.contract.own_inputs import Rule
from opwright.errors import TargetError
from opwright.judged.names import unique
from opwright.judged.task import Candidate, Task

__all__ = ["NAME", "TAKES", "recognises", "tasks"]

NAME = "robust-kbench"
TAKES = ".cu files, or folders of them, with func_forward.py beside; --references names the folder of tasks"
_TASK = "func_forward.py"
_FLAGS = ["-O3", "--use_fast_math"]
_ADDED = """

{constants}

def task_inputs():
    return get_inputs({inputs})


def task_constructor():
    return [dict({constructor})]


import inspect


class TaskModel(Model):
    def __init__(self, arguments):
        super().__init__(**arguments)

    def forward(self, *inputs, **options):
        # The format compares a scalar with a tensor of one element.
        result = super().forward(*inputs, **options)
        return result.reshape(1) if result.dim() == 0 else result

    forward.__signature__ = inspect.signature(Model.forward)
"""
_CANDIDATE = """

from opwright.judged.stated.solutions import Solution

_kernel = Solution({folder!r}, {entry!r}, inputs=[], outputs={{}}, flags={flags!r})


class Candidate(TaskModel):
    def forward(self, *inputs):
        return super().forward(*inputs, fn=_kernel)
"""


def recognises(paths: Sequence[str]) -> bool:
    files = list(_kernels(paths))
    return bool(files) and any(_exports(file) for file in files)


def tasks(paths: Sequence[str], references: Path | None, scratch: Path) -> Iterator[Task | tuple[str, str]]:
    """One task for each folder, with its kernels."""
    by_task: dict[Path, list[Path]] = {}
    for file in _kernels(paths):
        folder = _task_of(file, references)
        if "backward" in (file.stem, file.parent.name):
            yield str(file), "a kernel must be a forward, got a backward"
        elif not _exports(file):
            yield str(file), "it must export forward with PYBIND11_MODULE"
        elif folder is None:
            yield str(file), "no task belongs to it: name the folder of tasks with --references"
        else:
            by_task.setdefault(folder.resolve(), []).append(file)
    names = set[str]()
    for folder, files in by_task.items():
        try:
            yield _task(folder, files, scratch, unique(f"{folder.parent.name}_{folder.name}", names))
        except TargetError as error:
            yield str(folder), str(error)


def _kernels(paths: Sequence[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        for file in sorted(path.rglob("*.cu")) if path.is_dir() else [path]:
            if file.suffix == ".cu" and file.is_file():
                yield file.resolve()


def _exports(file: Path) -> bool:
    text = file.read_text(errors="replace")
    return "PYBIND11_MODULE" in text and '"forward"' in text


def _task_of(file: Path, references: Path | None) -> Path | None:
    """The folder of a kernel's task: its own, or the one below ``references`` that is called as a folder above it."""
    if (file.parent / _TASK).is_file():
        return file.parent
    if references is None:
        return None
    if (references / _TASK).is_file():
        return references
    found = {f.parent.name: f.parent for f in sorted(references.rglob(_TASK))}
    return next((found[parent.name] for parent in file.parents if parent.name in found), None)


def _task(folder: Path, files: Sequence[Path], scratch: Path, name: str) -> Task:
    """The task of a folder.

    Raises:
        TargetError: its files are missing or malformed.
    """
    text = (folder / _TASK).read_text()
    defined = _definitions(text)
    for needed in ("forward_fn", "get_inputs", "Model"):
        if needed not in defined:
            raise TargetError(f"{_TASK} must define {needed!r}, got {sorted(defined)}", fix="correct the file")
    settings = _settings(folder / "config_forward.json")
    inputs, constructor = settings("single", 0)
    inputs = {**_defaults(defined["get_inputs"]), **inputs}
    constructor = {**_defaults(_constructor_of(defined["Model"])), **constructor}
    integers = {key: value for key, value in {**inputs, **constructor}.items() if type(value) is int}
    added = _ADDED.format(
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
    return Task(
        name, NAME, reference, "TaskModel", tuple(_candidate(file, text + added, into, names) for file in files),
        inputs="task_inputs", constructor="task_constructor", rule=Rule(NAME, 1e-5, 1e-5),
        cases=tuple(case for case in cases if case), origin=folder / _TASK,
    )  # fmt: skip


def _candidate(file: Path, task: str, into: Path, names: set[str]) -> Candidate:
    """A kernel in a folder of its own, and a module that calls it in the place of ``forward_fn``."""
    name = unique(file.stem if file.stem != "kernel" else file.parent.parent.name, names)
    folder = into / f"{name}_files"
    folder.mkdir(exist_ok=True)
    (folder / file.name).write_text(file.read_text(errors="replace"))
    adapter = into / f"{name}.py"
    adapter.write_text(task + _CANDIDATE.format(folder=str(folder), entry=f"{file.name}::forward", flags=_FLAGS))
    return Candidate(name, adapter, "Candidate", language="cuda", origin=file)


def _definitions(text: str) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    try:
        return {n.name: n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    except SyntaxError as error:
        raise TargetError(f"{_TASK}:{error.lineno}: it must be Python, got {error.msg}", fix="correct it") from None


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
