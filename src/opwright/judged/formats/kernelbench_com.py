"""kernelbench.com: ``reference.py``, ``shapes.py`` and ``problem.yaml`` in a folder; ``Model`` in a solution too
(https://github.com/Infatoshi/kernelbench.com).

A solution is ``solution.py`` beside them, or ``…_{problem}_solution.py.txt``, whose problem ``--references`` has.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opwright.contract.own_inputs import Rule
from opwright.errors import TargetError
from opwright.judged.names import unique
from opwright.judged.sources import Source
from opwright.judged.task import Candidate, Task
from opwright.judged.yaml_files import read_yaml

__all__ = ["NAME", "TAKES", "recognises", "tasks"]

NAME = "kernelbench.com"
TAKES = "solution.py beside reference.py and problem.yaml, or *_solution.py.txt; --references names the problems"
_PUBLISHED = "_solution.py.txt"
# A published solution has the files that it loads after it, each below a heading.
_SIDECAR = re.compile(r"^# =+\n# =+ sidecar: (\S+) .*\n# =+\n", re.MULTILINE)
_REFERENCE = "Model"
_NEEDED = (_REFERENCE, "get_inputs", "get_init_inputs")
# What people decided of a published run.
_AUDITS = {"clean": "correct", "bug": "wrong", "reward_hack": "wrong"}
_USUAL_TOLERANCE = 1e-2


def recognises(paths: Sequence[str]) -> bool:
    return any(True for _ in _solutions(paths))


def tasks(paths: Sequence[str], references: Path | None, scratch: Path) -> Iterator[Task | tuple[str, str]]:
    """One task for each problem, with its solutions."""
    problems = {file.parent.name: file.parent for file in _found(references, "problem.yaml")} if references else {}
    by_problem: dict[Path, list[Path]] = {}
    for file in _solutions(paths):
        problem = _problem_of(file, problems)
        if problem is None:
            yield str(file), "no problem belongs to it: name the folder of problems with --references"
        else:
            by_problem.setdefault(problem.resolve(), []).append(file)
    names = set[str]()
    for problem, files in by_problem.items():
        try:
            yield _task(problem, files, scratch, unique(f"problem_{problem.name}", names))
        except TargetError as error:
            yield str(problem), str(error)


def _solutions(paths: Sequence[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        for file in [*_found(path, f"*{_PUBLISHED}"), *_found(path, "solution.py")] if path.is_dir() else [path]:
            is_beside = file.name == "solution.py" and (file.parent / "problem.yaml").is_file()
            if (is_beside or file.name.endswith(_PUBLISHED)) and file.is_file():
                yield file.resolve()


def _found(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.rglob(pattern), reverse=True)


def _problem_of(file: Path, problems: Mapping[str, Path]) -> Path | None:
    """The folder of a solution's problem: its own, or the one whose name ends that of a published run."""
    if not file.name.endswith(_PUBLISHED):
        return file.parent
    run = file.name.removesuffix(_PUBLISHED)
    return next((folder for name, folder in problems.items() if run.endswith(f"_{name}")), None)


def _task(folder: Path, files: Sequence[Path], scratch: Path, name: str) -> Task:
    """The task of a folder.

    Raises:
        TargetError: its files are missing or malformed.
    """
    stated = read_yaml(folder / "problem.yaml")
    reference = folder / "reference.py"
    if not reference.is_file():
        raise TargetError("reference.py must be beside problem.yaml, got none", fix="name another folder")
    defined = {n.name for n in _parsed(reference).body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    if missing := [needed for needed in _NEEDED if needed not in defined]:
        raise TargetError(f"reference.py must define {missing[0]!r}, got {sorted(defined)}", fix="correct the file")
    into, names = scratch / f"sources_{name}", set[str]()
    return Task(
        name, NAME, reference, _REFERENCE, tuple(_candidate(file, stated, into, names) for file in files),
        constructor="get_init_inputs", rule=Rule(NAME, *_tolerance(stated.get("tolerance")), strict_state=True),
        cases=tuple(_shapes(folder)), expects_kernel=True, loads_state=True,
    )  # fmt: skip


def _candidate(file: Path, stated: Mapping[str, Any], scratch: Path, names: set[str]) -> Candidate:
    """A solution. A published one is copied, because only a file with the suffix of Python can be imported."""
    text = file.read_text(errors="replace")
    name = unique(file.name.removesuffix(_PUBLISHED) if file.name.endswith(_PUBLISHED) else file.parent.name, names)
    own, *beside = _SIDECAR.split(text)
    copied = (scratch / name if beside else scratch) / f"{name}.py"
    copied.parent.mkdir(parents=True, exist_ok=True)
    copied.write_text(own)
    for name_beside, content in zip(beside[::2], beside[1::2], strict=True):
        (copied.parent / Path(name_beside).name).write_text(content.lstrip("\n"))
    forbidden = [word for word in stated.get("forbidden") or () if str(word) in text]
    return Candidate(name, copied, _REFERENCE, "wrong" if forbidden else _audited(file), origin=file)


def _audited(file: Path) -> str:
    """What people decided of a published run; "" if nothing."""
    name = f"results/annotations/{file.name.removesuffix(_PUBLISHED)}.yaml"
    for folder in file.parents[:4]:
        for annotation in (folder / name, *folder.glob(f"benchmarks/*/{name}")):
            if annotation.is_file():
                try:
                    return _AUDITS.get(str(read_yaml(annotation).get("verdict")), "")
                except TargetError:
                    return ""
    return ""


def _shapes(folder: Path) -> Iterator[Mapping[str, int]]:
    """The dictionaries of numbers that ``shapes.py`` lists, by the reference's constants, whose names may be in
    capitals; none if it computes them."""
    file, constants = folder / "shapes.py", Source(folder / "reference.py").constants
    names = {name.lower(): name for name in constants} | {name: name for name in constants}
    for node in _parsed(file).body if file.is_file() else []:
        if isinstance(node, ast.Assign | ast.AnnAssign) and "SHAPES" in ast.unparse(node).partition("=")[0]:
            try:
                listed = ast.literal_eval(node.value) if node.value is not None else []
            except ValueError:
                continue
            for shape in listed:
                yield {names.get(key, key): value for key, value in shape.items() if type(value) is int}


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_text(), str(file))
    except SyntaxError as error:
        raise TargetError(f"{file.name}:{error.lineno}: it must be Python, got {error.msg}", fix="correct it") from None


def _tolerance(stated: Any) -> tuple[float, float]:
    """The absolute and the relative tolerance of the first dtype."""
    first = next(iter(stated.values()), None) if isinstance(stated, dict) else stated
    parts = [first.get("atol", 0), first.get("rtol", 0)] if isinstance(first, dict) else [first, first]
    numbers = [str(part) for part in parts]
    if not all(re.fullmatch(r"[\d.]+(e[+-]?\d+)?", number) for number in numbers):
        return _USUAL_TOLERANCE, _USUAL_TOLERANCE
    return float(numbers[0]), float(numbers[1])
