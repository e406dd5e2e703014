"""Definitions, workloads and solutions in JSON, as flashinfer-bench and SOL-ExecBench have them: read and validated."""

from __future__ import annotations

import ast
import json
import keyword
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from opwright.errors import TargetError
from opwright.results.json_form import MalformedRecordError, from_json

__all__ = ["Axis", "Definition", "Files", "Solution", "TensorSpec", "Workload", "json_files", "read_files"]


@dataclass(frozen=True)
class Axis:
    """A size: ``type`` is const, var or expr."""

    type: str
    value: int | None = None
    expression: str | None = None


@dataclass(frozen=True)
class TensorSpec:
    """An input or an output; a number if it has no shape."""

    dtype: str
    shape: list[str] | None = None
    description: str | None = None


@dataclass(frozen=True)
class Definition:
    """An operator: its sizes, inputs and outputs, and a reference in Python."""

    name: str
    axes: dict[str, Axis]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    reference: str
    op_type: str | None = None
    constraints: list[str] | None = None
    custom_inputs_entrypoint: str | None = None


@dataclass(frozen=True)
class Flags:
    """The options of a compiler."""

    cuda_cflags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Spec:
    """How a solution is built and called. ``languages`` is SOL-ExecBench's."""

    entry_point: str
    language: str | None = None
    languages: list[str] | None = None
    destination_passing_style: bool = True
    binding: str | None = None
    compile_options: Flags | None = None


@dataclass(frozen=True)
class SourceFile:
    """A source, and its place below the solution's folder."""

    path: str
    content: str


@dataclass(frozen=True)
class Solution:
    """A kernel for a definition."""

    name: str
    definition: str
    spec: Spec
    sources: list[SourceFile]


@dataclass(frozen=True)
class WorkloadInput:
    """An input: ``type`` is random, scalar, safetensors or custom."""

    type: str
    value: Any = None
    path: str | None = None
    tensor_key: str | None = None


@dataclass(frozen=True)
class Workload:
    """The sizes and the inputs of one call."""

    axes: dict[str, int]
    inputs: dict[str, WorkloadInput]
    uuid: str = ""
    tolerance: dict[str, Any] | None = None


@dataclass
class Files:
    """What was found in some files: each record with its file, and the files that have none, with the reason."""

    definitions: dict[str, tuple[Path, Definition]] = field(default_factory=dict)
    solutions: list[tuple[Path, Solution]] = field(default_factory=list)
    workloads: dict[str, list[Workload]] = field(default_factory=dict)
    unread: list[tuple[str, str]] = field(default_factory=list)


def json_files(paths: Sequence[str | Path]) -> list[Path]:
    """The JSON files among some paths, and in their folders."""
    found = list[Path]()
    for path in map(Path, paths):
        found += sorted(path.rglob("*.json*")) if path.is_dir() else [path]
    return [f.resolve() for f in found if f.suffix in (".json", ".jsonl") and f.is_file()]


def read_files(paths: Sequence[Path]) -> Files:
    """Read JSON files. A file that is none of the records is left out, unless it has their keys and is malformed."""
    found = Files()
    for file in sorted(paths, key=lambda f: f.suffix):  # definitions before workloads
        try:
            _read_lines(file, found) if file.suffix == ".jsonl" else _read_file(file, found)
        except (OSError, ValueError, MalformedRecordError, TargetError) as error:
            found.unread.append((str(file), str(error)))
    return found


def _read_file(file: Path, found: Files) -> None:
    record = json.loads(file.read_text())
    if not isinstance(record, dict):
        return
    if "reference" in record and "axes" in record:
        definition = _validated(from_json(Definition, record))
        found.definitions[definition.name] = file, definition
    elif "sources" in record and "definition" in record:
        found.solutions.append((file, _validated_solution(from_json(Solution, record))))


def _read_lines(file: Path, found: Files) -> None:
    """Workloads: of the definition that a line names, or else of the one beside the file."""
    beside = [name for name, (at, _) in found.definitions.items() if at.parent == file.parent]
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            name = record.get("definition") or (beside[0] if beside else "")
            workload = record.get("workload", record)
            if name and "axes" in workload:
                found.workloads.setdefault(name, []).append(from_json(Workload, workload))
        except (ValueError, AttributeError) as error:
            raise TargetError(f"line {number}: {error}", fix="correct the line") from None


def _validated(definition: Definition) -> Definition:
    """The definition, if its parts fit together.

    Raises:
        TargetError: they do not.
    """
    axes = definition.axes.items()
    bad = [n for n, a in axes if (a.type, a.value, a.expression) in (("const", None, None), ("expr", None, None))]
    unknown = {axis for t in _tensors(definition) for axis in t.shape or () if axis not in definition.axes}
    unnamed = [n for n in (*definition.inputs, *definition.axes) if not n.isidentifier() or keyword.iskeyword(n)]
    if bad or (unknown := {axis for axis in unknown if not axis.isdigit()}):
        raise TargetError(f"axes must state each size, got none for {sorted(bad or unknown)}", fix="add them to axes")
    if unnamed or not definition.inputs or not definition.outputs:
        raise TargetError(f"inputs and axes must be named by identifiers, got {unnamed}", fix="rename them")
    try:
        defined = [n.name for n in ast.parse(definition.reference).body if isinstance(n, ast.FunctionDef)]
    except SyntaxError as error:
        raise TargetError(
            f"reference must be Python, got {error.msg} in line {error.lineno}", fix="correct it"
        ) from None
    for name in filter(None, ("run", definition.custom_inputs_entrypoint)):
        if name not in defined:
            raise TargetError(f"reference must define {name!r}, got {defined}", fix="define the function")
    return definition


def _tensors(definition: Definition) -> Iterator[TensorSpec]:
    yield from definition.inputs.values()
    yield from definition.outputs.values()


def _validated_solution(solution: Solution) -> Solution:
    paths: Mapping[str, PurePosixPath] = {s.path: PurePosixPath(s.path) for s in solution.sources}
    outside = [text for text, path in paths.items() if path.is_absolute() or ".." in path.parts]
    if outside:
        raise TargetError(f"sources must be below the solution's folder, got {outside}", fix="use relative paths")
    file, colons, symbol = solution.spec.entry_point.partition("::")
    if not colons or not symbol.isidentifier() or file not in paths:
        raise TargetError(
            f"entry_point must be a file of sources and a function, got {solution.spec.entry_point!r}",
            fix="write it like 'kernel.py::run'",
        )
    return solution
