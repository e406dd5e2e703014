"""gpu-mode's reference-kernels: ``task.yml``, ``reference.py`` and submissions with ``custom_kernel``
(https://github.com/gpu-mode/reference-kernels).

The first test of ``task.yml`` is the task's input. Its integers are constants, of which the others have other values.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opwright.contract.own_inputs import Rule
from opwright.errors import TargetError
from opwright.judged.contract_text import language_of
from opwright.judged.names import unique
from opwright.judged.task import Candidate, Task
from opwright.judged.yaml_files import read_yaml

__all__ = ["NAME", "TAKES", "recognises", "tasks"]

NAME = "gpu-mode"
TAKES = "folders with task.yml and reference.py, or submissions in them"
_ENTRY = re.compile(r"^(def custom_kernel\b|custom_kernel\s*=)", re.MULTILINE)
_OF_TASK = ("reference", "task", "utils")
_TOLERANCE = re.compile(r"make_match_reference\(\s*ref_kernel\s*(.*?)\)", re.DOTALL)
_REFERENCE = """from opwright.judged.stated.data_task import DataTask

{constants}
task = DataTask({folder!r}, {{{case}}})


def get_inputs():
    return task.inputs()


def reference(*tensors):
    return task.reference(tensors)
"""
_CANDIDATE = """from opwright.judged.stated.data_task import DataTask

custom_kernel = DataTask({folder!r}, {case!r}).submission({file!r})
"""


def recognises(paths: Sequence[str]) -> bool:
    return any(_above(Path(path)) is not None or any(_task_files(Path(path))) for path in paths)


def tasks(paths: Sequence[str], references: Path | None, scratch: Path) -> Iterator[Task | tuple[str, str]]:
    """One task for each ``task.yml``, with the submissions below it, or those that are given."""
    given: dict[Path, list[Path]] = {}
    for path in map(Path, paths):
        if path.suffix == ".py":
            folder = references or _above(path)
            if folder is None or not _ENTRY.search(path.read_text(errors="replace")):
                yield str(path), "it must define custom_kernel, in the folder of a task.yml"
            else:
                given.setdefault(folder.resolve(), []).append(path.resolve())
        for file in _task_files(path):
            given.setdefault(file.parent, []).extend(_submissions(file.parent))
    names = set[str]()
    for folder, files in given.items():
        try:
            yield _task(folder, files, scratch, unique(f"{folder.parent.name}_{folder.name}", names))
        except (TargetError, OSError) as error:
            yield str(folder / "task.yml"), str(error)


def _above(path: Path) -> Path | None:
    """The folder of the task that a submission is in."""
    folders = path.resolve().parents if path.suffix == ".py" else []
    return next((f for f in folders if (f / "task.yml").is_file()), None)


def _task_files(path: Path) -> list[Path]:
    return [f.resolve() for f in sorted(path.rglob("task.yml"))] if path.is_dir() else []


def _submissions(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("*.py")):
        is_of_task = file.stem in _OF_TASK or file.name.startswith(("eval", "template"))
        if not is_of_task and _ENTRY.search(file.read_text(errors="replace")):
            yield file


def _task(folder: Path, files: Sequence[Path], scratch: Path, name: str) -> Task:
    """The task of a folder.

    Raises:
        TargetError: it has no plain reference, or its files are missing.
    """
    stated = read_yaml(folder / "task.yml")
    if not isinstance(stated.get("files"), list):
        raise TargetError("files of task.yml must be a list", fix="list the files")
    case, *others = _cases(folder, stated)
    text = (folder / "reference.py").read_text()
    defined = _functions(folder, text)
    if "ref_kernel" not in defined.get("check_implementation", "ref_kernel"):
        raise TargetError(
            f"{folder / 'reference.py'}: check_implementation must compare with ref_kernel, got other properties",
            fix="judge another task: this one has several right results",
        )
    for needed in ("generate_input", "ref_kernel"):
        if needed not in defined:
            raise TargetError(
                f"{folder / 'reference.py'} must define {needed!r}, a plain reference, got {sorted(defined)}",
                fix="judge another task",
            )
    copies = scratch / f"sources_{name}"
    _copied(folder, stated, copies / "task")
    constants = {key: value for key, value in case.items() if type(value) is int and key != "seed"}
    arguments = ", ".join(f"{key!r}: {key if key in constants else repr(value)}" for key, value in case.items())
    reference = copies / "contract_reference.py"
    lines = "".join(f"{key} = {value}\n" for key, value in constants.items())
    reference.write_text(_REFERENCE.format(folder=str(copies / "task"), constants=lines, case=arguments))
    names = set[str]()
    candidates = [_candidate(file, folder, copies, case, unique(file.stem, names)) for file in files]
    cases = tuple({key: each[key] for key in constants if type(each.get(key)) is int} for each in others)
    return Task(
        name, NAME, reference, "reference", tuple(candidates), rule=_rule(text), cases=cases,
        origin=folder / "reference.py", more_reference=((copies / "task" / "reference.py", ""),),
    )  # fmt: skip


def _candidate(file: Path, folder: Path, copies: Path, case: Mapping[str, Any], name: str) -> Candidate:
    """A submission, which is copied into a folder of its own: its name may be that of a module."""
    copied = copies / name / f"submission_{name}.py"
    copied.parent.mkdir(parents=True, exist_ok=True)
    text = file.read_text()
    copied.write_text(text)
    adapter = copies / f"{name}.py"
    adapter.write_text(_CANDIDATE.format(folder=str(copies / "task"), case=dict(case), file=str(copied)))
    label = file.relative_to(folder).parts if file.is_relative_to(folder) else ()
    claimed = "correct" if "correct" in label else "wrong" if "wrong" in label else ""
    return Candidate(name, adapter, "custom_kernel", claimed, language_of(text), file)


def _cases(folder: Path, stated: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    listed = [case for key in ("tests", "benchmarks") for case in stated.get(key) or ()]
    cases: list[Mapping[str, Any]] = [case for case in listed if isinstance(case, dict)]
    if not cases or not all(isinstance(key, str) and key.isidentifier() for key in cases[0]):
        raise TargetError(f"tests of task.yml must be arguments of generate_input, got {cases[:1]}", fix="add one")
    return cases


def _functions(folder: Path, text: str) -> dict[str, str]:
    """The functions of a reference, and their texts."""
    try:
        return {node.name: ast.unparse(node) for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    except SyntaxError as error:
        raise TargetError(
            f"{folder / 'reference.py'}:{error.lineno}: it must be Python, got {error.msg}", fix="correct the file"
        ) from None


def _copied(folder: Path, stated: Mapping[str, Any], into: Path) -> None:
    """The task's files by the names that they import each other by."""
    into.mkdir(parents=True, exist_ok=True)
    for each in stated["files"]:
        source = str(each.get("source", "@")) if isinstance(each, dict) else "@"
        if not source.startswith("@") and source.endswith(".py"):
            shutil.copyfile(folder / source, into / Path(str(each["name"])).name)


def _rule(text: str) -> Rule | None:
    """The tolerance that the task states; None if it compares in its own way."""
    found = _TOLERANCE.search(text)
    if found is None:
        return None
    stated = {key: float(value) for key, value in re.findall(r"(rtol|atol)\s*=\s*([\d.e+-]+)", found.group(1))}
    return Rule(NAME, stated.get("atol", 1e-8), stated.get("rtol", 1e-5))
