"""BackendBench: ``add__Tensor/add__Tensor_implementation_v1.py`` with ``add__Tensor_kernel_impl``, in the place of
``torch.ops.aten.add.Tensor`` (https://github.com/meta-pytorch/BackendBench).

The inputs are those of a file of traces: ``Operator: aten.add.Tensor``, then lines such as
``cnt: 3, ((T([2, 5], f16), T([5], f16)), {'alpha': 2})``. Each form of a call, such as other ranks, is a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from opwright.contract.own_inputs import Rule
from opwright.judged.contract_text import language_of
from opwright.judged.names import unique
from opwright.judged.stated.traces import Traced, forms_of, read_traces
from opwright.judged.task import Candidate, Task

__all__ = ["NAME", "TAKES", "recognises", "tasks"]

NAME = "backendbench"
TAKES = "folders such as add__Tensor with *_implementation*.py; --references names a file of traces"
_IMPLEMENTATION = "*_implementation*.py"
_REFERENCE = """import torch
from math import inf, nan


def get_inputs():
    return [{inputs}]


def reference({names}):
    return torch.ops.aten.{operator}.{overload}({call})
"""
_CANDIDATE = """import torch
from math import inf, nan

from opwright.judged.sources import load_candidate
from pathlib import Path

_implementation = load_candidate(Path({file!r}))[{function!r}]


def candidate({names}):
    return _implementation({call})
"""


def recognises(paths: Sequence[str]) -> bool:
    return any(True for _ in _files(paths))


def tasks(paths: Sequence[str], references: Path | None, scratch: Path) -> Iterator[Task | tuple[str, str]]:
    """A task for each form in which an operator with implementations is called."""
    if references is None or not references.is_file():
        for file in _files(paths):
            yield str(file), "its inputs must be in a file of traces\n  → name the file with --references"
        return
    traces = read_traces(references.read_text(errors="replace"))
    by_folder: dict[str, list[Path]] = {}
    for file in _files(paths):
        by_folder.setdefault(file.parent.name, []).append(file)
    names = set[str]()
    for folder, files in by_folder.items():
        found = [key for key in traces if folder in (f"{key[0]}__{key[1]}", key[0])]
        if not found:
            reason = f"{references.name} must have calls of it that return new tensors, got none"
            yield from ((str(file), reason) for file in files)
        for operator, overload in found:
            for traced in forms_of(traces[operator, overload]):
                name = unique(f"{operator}_{overload}", names)
                yield _task(name, (operator, overload), traced, files, references, scratch)


def _files(paths: Sequence[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        for file in sorted(path.rglob(_IMPLEMENTATION)) if path.is_dir() else [path]:
            is_named = file.suffix == ".py" and file.name.startswith(f"{file.parent.resolve().name}_implementation")
            if is_named and file.is_file():
                yield file.resolve()


def _task(
    name: str, key: tuple[str, str], traced: Traced, files: Iterable[Path], references: Path, scratch: Path
) -> Task:
    into = scratch / f"sources_{name}"
    into.mkdir(parents=True, exist_ok=True)
    arguments = ", ".join(f"x{i}" for i in range(len(traced.inputs)))
    reference = into / "reference.py"
    reference.write_text(
        _REFERENCE.format(
            inputs=", ".join(traced.inputs), names=arguments, operator=key[0], overload=key[1], call=traced.call
        )
    )
    names, candidates = set[str](), list[Candidate]()
    for file in files:
        own = unique(file.stem, names)
        adapter = into / f"{own}.py"
        function = f"{file.parent.name}_kernel_impl"
        adapter.write_text(_CANDIDATE.format(file=str(file), function=function, names=arguments, call=traced.call))
        language = language_of(file.read_text(errors="replace"))
        candidates.append(Candidate(own, adapter, "candidate", language=language, origin=file))
    rule = Rule(NAME, 1e-2, 1e-2)
    return Task(name, NAME, reference, "reference", tuple(candidates), rule=rule, origin=references)
