"""Definitions and solutions in JSON as tasks. Their sources are written below a scratch folder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.contract.own_inputs import Rule
from opwright.errors import TargetError
from opwright.judged.names import unique
from opwright.judged.packages import missing_package
from opwright.judged.stated.definitions import Definition, Files, Solution, Workload, json_files, read_files
from opwright.judged.stated.statement import RANGES, Statement
from opwright.judged.task import Candidate, Task
from opwright.results.json_form import to_json

__all__ = ["Dialect", "tasks_of"]

_LARGEST_WORKLOAD = 1 << 16
_REFERENCE = """

def reference_outputs(*arguments):
    from opwright.judged.stated.solutions import in_order

    return in_order(run(*arguments), {})
"""
_INPUTS = """

def workload_inputs():
    import torch

{}    return [{}]
"""
_CANDIDATE = """from opwright.judged.stated.solutions import Solution

# {name}, for {definition}
run = Solution(
    {folder!r},
    {entry!r},
    inputs={inputs!r},
    outputs={outputs!r},
    writes_outputs={writes!r},
    flags={flags!r},
)
"""
_LANGUAGES = {
    "python": "python", "pytorch": "python", "triton": "triton", "cpp": "python", "cuda": "cuda", "cuda_cpp": "cuda",
}  # fmt: skip


@dataclass(frozen=True)
class Dialect:
    """What differs between the formats: the name, the rule, and the binding of C++ that stands for none."""

    name: str
    rule: Rule
    binding: str


def tasks_of(
    dialect: Dialect, paths: Sequence[str], references: Path | None, scratch: Path
) -> Iterator[Task | tuple[str, str]]:
    """One task for each definition that has solutions; a file and a reason for each that cannot be read."""
    found = read_files(json_files([*paths, *([references] if references is not None else [])]))
    yield from found.unread
    by_definition: dict[str, list[tuple[Path, Solution]]] = {}
    for file, solution in found.solutions:
        if solution.definition not in found.definitions:
            yield str(file), f"its definition must be given, got none named {solution.definition!r}\n  → add its file"
        else:
            by_definition.setdefault(solution.definition, []).append((file, solution))
    names = set[str]()
    for name, solutions in by_definition.items():
        yield from _task(dialect, found, name, solutions, scratch, unique(name.lower(), names))


def _task(
    dialect: Dialect, found: Files, name: str, solutions: Sequence[tuple[Path, Solution]], scratch: Path, own: str
) -> Iterator[Task | tuple[str, str]]:
    file, definition = found.definitions[name]
    folder = scratch / f"sources_{own}"
    reference = folder / "reference.py"
    statement = Statement(definition, found.workloads.get(name, []), str(reference))
    try:
        contract = statement.contract()
    except TargetError as error:
        yield str(file), str(error)
        return
    inputs = _workload_inputs(statement)
    _write(reference, f"{definition.reference}\n{_REFERENCE.format(list(definition.outputs))}{inputs}")
    candidates, names = list[Candidate](), set[str]()
    for path, solution in solutions:
        try:
            language = _language(dialect, solution, folder)
        except TargetError as error:
            yield str(path), str(error)
            continue
        plain = unique(solution.name, names)
        written = _written(statement, solution, folder / f"{plain}_files")
        published = {"definition": name, "solution": solution.name, "workload": _of_trace(statement.smallest)}
        candidates.append(Candidate(plain, written, "run", "", language, path, published))
    yield Task(
        own, dialect.name, reference, "reference_outputs", tuple(candidates),
        inputs="workload_inputs" if inputs else "", rule=dialect.rule, stated=contract, origin=file,
    )  # fmt: skip


def _of_trace(workload: Workload | None) -> dict[str, Any]:
    """A workload as its file has it."""
    if workload is None:
        return {}
    inputs = {n: {k: v for k, v in to_json(i).items() if v is not None} for n, i in workload.inputs.items()}
    return {"axes": dict(workload.axes), "inputs": inputs, "uuid": workload.uuid}


def _language(dialect: Dialect, solution: Solution, scratch: Path) -> str:
    """The language in which a solution is attached.

    Raises:
        TargetError: nothing runs it here.
    """
    spec = solution.spec
    named = spec.languages or [spec.language or ""]
    unknown = [language for language in named if language not in _LANGUAGES]
    if unknown:
        raise TargetError(
            f"language must be one of {', '.join(_LANGUAGES)}, got {unknown[0]!r}", fix="judge another solution"
        )
    binding = spec.binding or dialect.binding
    if ".py::" not in spec.entry_point and binding != "torch":
        raise TargetError(f"binding must be torch, got {binding}", fix="export the function with PYBIND11_MODULE")
    packages = [missing_package(s.content, scratch / s.path) for s in solution.sources if s.path.endswith(".py")]
    own = {Path(s.path).parts[0].removesuffix(".py") for s in solution.sources}
    if missing := [package for package in packages if package and package not in own]:
        raise TargetError(f"the module {missing[0]!r} must be installed", fix="install its package")
    return _LANGUAGES[named[0]]


def _written(statement: Statement, solution: Solution, folder: Path) -> Path:
    """Write the sources of a solution, and a file with its function ``run``, which is returned."""
    for source in solution.sources:
        _write(folder / source.path, source.content)
    if not (folder / "__init__.py").exists():
        _write(folder / "__init__.py", "")
    definition, spec = statement.definition, solution.spec
    inputs = [_joined(statement, definition, name) for name in definition.inputs]
    outputs = {n: (t.dtype, " ".join(statement.dims(t) or ())) for n, t in definition.outputs.items()}
    flags = spec.compile_options.cuda_cflags if spec.compile_options else []
    text = _CANDIDATE.format(
        name=solution.name, definition=definition.name, folder=str(folder), entry=spec.entry_point, inputs=inputs,
        outputs=outputs, writes=spec.destination_passing_style, flags=flags,
    )  # fmt: skip
    return _write(folder.with_name(folder.name.removesuffix("_files") + ".py"), text)


def _joined(statement: Statement, definition: Definition, name: str) -> str | None:
    dims = statement.dims(definition.inputs[name])
    return None if dims is None else " ".join(dims)


def _workload_inputs(statement: Statement) -> str:
    """The function that makes the inputs of the smallest workload; "" if they are in other files, or too large."""
    workload, definition = statement.smallest, statement.definition
    shapes = statement.shapes()
    if workload is None or shapes is None or sum(map(math.prod, shapes.values())) > _LARGEST_WORKLOAD:
        return ""
    kinds = {name: given.type for name, given in workload.inputs.items()}
    if kinds.keys() != definition.inputs.keys() or not {*kinds.values()} <= {"random", "scalar", "custom"}:
        return ""
    call = f"{definition.custom_inputs_entrypoint}({statement.of_call()!r}, torch.device('cpu'))"
    texts = {
        name: f"inputs[{name!r}]" if kind == "custom" else repr(workload.inputs[name].value)
        if kind == "scalar" else _random(definition.inputs[name].dtype, shapes[name])
        for name, kind in kinds.items()
    }  # fmt: skip
    return _INPUTS.format(
        f"    inputs = {call}\n" if "custom" in kinds.values() else "",
        ", ".join(texts[name] for name in definition.inputs),
    )


def _random(dtype: str, shape: Sequence[int]) -> str:
    """The text that draws an input as the formats do."""
    if dtype in RANGES:
        low, high = RANGES[dtype]
        return f"torch.randint({low}, {high + 1}, {list(shape)}, dtype=torch.{dtype})"
    if dtype == "bool":
        return f"torch.randint(0, 2, {list(shape)}).bool()"
    drawn = f"torch.randn({list(shape)})" + (".clamp(-2, 2)" if "float8" in dtype else "")
    return f"{drawn}.to(torch.{dtype})"


def _write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file
