"""An inferred contract as the text of a Python file: what checks read, and what a user can take over."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from opwright.judged.contract import Inferred, InferredTensor
from opwright.judged.shown import Shown
from opwright.judged.sources import Source
from opwright.judged.task import Candidate, Task

__all__ = ["EAGER", "class_of", "contract_text", "declaration"]

# The name under which the reference is timed as it is. No candidate has one with a space.
EAGER = "published reference"

# Elements of a sample: more take too long in a simulator.
_LARGEST_SAMPLE = 1 << 16


def contract_text(task: Task, inferred: Inferred) -> str:
    """The file: the operator, its sizes and sample inputs, and each candidate as a kernel."""
    classes = sorted({class_of(t.dtype) for t in (*inferred.arguments, *inferred.outputs) if t.dims is not None})
    return "\n".join([
        f'"""The contract of {(task.origin or task.file).name} ({task.format}), which {_from_where(task)}.',
        *(["", "Taken as fixed:", *(f"- {sentence}" for sentence in inferred.fixed)] if inferred.fixed else []),
        '"""',
        "",
        *(["from typing import Annotated", ""] if any("Annotated" in _argument(t) for t in inferred.arguments) else []),
        f"from jaxtyping import {', '.join(classes)}",
        "from torch import Tensor",
        "",
        "import opwright as ow",
        *(["from opwright.contract.own_inputs import Rule"] if task.rule else []),
        "from opwright.judged.called import CalledTask",
        *(["from opwright.judged.stated.custom_inputs import custom_values"] if _has_custom_values(inferred) else []),
        "",
        "task = CalledTask(",
        f"    {str(task.file)!r},",
        f"    {task.reference!r},",
        f"    inputs={task.inputs!r},",
        *([f"    constructor={task.constructor!r},"] if task.constructor else []),
        f"    seed={task.seed},",
        f"    constants={dict(inferred.constants)!r},",
        f"    state={list(inferred.state)!r},",
        *([f"    scalars={dict(inferred.scalars)!r},"] if inferred.scalars else []),
        *([f"    layouts={dict(inferred.layouts)!r},"] if inferred.layouts else []),
        *(["    has_fixed_state=True,"] if inferred.fixed_state else []),
        *(["    loads_state=True,"] if task.loads_state else []),
        *(["    shares_names=True,"] if task.shares_names else []),
        ")",
        "",
        "",
        *declaration(task, inferred),
        "",
        "",
        *(_samples(task, inferred) if task.inputs else []),
        f"{task.name}.contract.own_inputs.may_refuse = True",
        *_smaller_samples(task, inferred),
        f"{task.name}.contract.own_inputs.contiguous = True",
        *([f"{task.name}.contract.own_inputs.expects_kernel = True"] if task.expects_kernel else []),
        *_parameters(task, inferred),
        f"{task.name}.contract.own_inputs.reference_code = {task.reference_code!r}",
        *([f"{task.name}.contract.own_inputs.rule = {task.rule!r}", ""] if task.rule else []),
        *(_attached(task, candidate) for candidate in task.candidates),
        # Timed as candidates are, with what calls of such functions cost besides.
        f"{task.name}.baseline(task.candidate({str(task.file)!r}, {task.reference!r}), name={EAGER!r})",
        "",
    ])  # fmt: skip


def declaration(task: Task, inferred: Inferred) -> list[str]:
    """The lines that declare the operator, and the task's own sizes."""
    own_sizes = ", ".join(f"{name}={sizes!r}" for name, sizes in _sizes(task, inferred).items())
    return [
        f"@ow.op({task.qualname!r}{_options(inferred)})",
        f"def {task.name}({', '.join(map(_argument, inferred.arguments))}) -> {_returned(inferred)}:",
        f"    return task.reference({', '.join(t.name for t in inferred.arguments)})",
        *(["", "", f"{task.name}.sizes({own_sizes})"] if own_sizes else []),
    ]


def _sizes(task: Task, inferred: Inferred) -> dict[str, tuple[int, ...]]:
    """The task's own sizes, and those of its cases that have its own values for the constants that no size shows."""
    fixed = Source(task.file).constants if task.cases else {}
    shown = [Shown.at(name, place) for name, place in inferred.constants.items()]
    names = {each.name for each in shown}
    cases = [inferred.own]
    for case in task.cases:
        if names <= case.keys() and all(fixed.get(n) == value for n, value in case.items() if n not in names):
            cases.append({each.dim: each.size(case[each.name]) for each in shown})
    return {name: tuple(case[name] for case in cases if name in case) for name in inferred.own}


def _has_custom_values(inferred: Inferred) -> bool:
    return any("custom_values(" in argument.values for argument in inferred.arguments)


def _from_where(task: Task) -> str:
    return "the task states" if task.stated else "`opwright judge` inferred"


def _samples(task: Task, inferred: Inferred) -> list[str]:
    drawn = f"task.samples({_LARGEST_SAMPLE}, where={list(inferred.where)!r})"
    return [f"@{task.name}.samples", "def _():", f"    yield from {drawn}", "", ""]


def _smaller_samples(task: Task, inferred: Inferred) -> list[str]:
    is_large = bool(task.inputs) and inferred.own_elements > _LARGEST_SAMPLE
    return [f"{task.name}.contract.own_inputs.samples_are_smaller = True"] if is_large else []


def _parameters(task: Task, inferred: Inferred) -> list[str]:
    """Which arguments are a module's parameters and buffers: the last ones."""
    if not task.constructor:
        return []
    names = tuple(t.name for t in inferred.arguments[len(inferred.arguments) - len(inferred.state) :])
    return [f"{task.name}.contract.own_inputs.parameters = {names!r}"]


def _options(inferred: Inferred) -> str:
    options = [f"where={list(inferred.where)!r}"] * bool(inferred.where) + ["random=True"] * inferred.is_random
    return "".join(f", {option}" for option in options)


def _argument(tensor: InferredTensor) -> str:
    values = tensor.values
    if tensor.drawn_as >= 0:
        values = f"ow.inputs.drawn_by(task.drawn({tensor.drawn_as}))"
    elif tensor.high is not None:
        values = f"ow.values({tensor.low!r}, {tensor.high!r})"
    return f"{tensor.name}: " + (f"Annotated[{_type_of(tensor)}, {values}]" if values else _type_of(tensor))


def _returned(inferred: Inferred) -> str:
    stated = [_type_of(t) for t in inferred.outputs]
    return f"tuple[{', '.join(stated)}]" if inferred.returns_tuple else stated[0]


def _type_of(tensor: InferredTensor) -> str:
    return tensor.dtype if tensor.dims is None else f'{class_of(tensor.dtype)}[Tensor, "{" ".join(tensor.dims)}"]'


def class_of(dtype: str) -> str:
    """jaxtyping's class of one dtype: ``float32`` → ``Float32``."""
    return {"bfloat16": "BFloat16", "uint8": "UInt8"}.get(dtype, dtype.capitalize().replace("_", ""))


def _attached(task: Task, candidate: Candidate) -> str:
    language = candidate.language or language_of(candidate.file.read_text(errors="replace"))
    version = _version((candidate.file, candidate.origin, task.file, task.origin, *(f for f, _ in task.more_reference)))
    made = f"task.candidate({str(candidate.file)!r}, {candidate.entry!r}, {version!r})"
    return f"{task.name}.{language}({made}, name={candidate.name!r})"


def _version(files: Iterable[Path | None]) -> str:
    contents = (file.read_bytes() for file in files if file is not None and file.is_file())
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:12]


def language_of(text: str) -> str:
    """The language of a candidate's file, by what it imports and contains."""
    if re.search(r"^\s*(import [^#\n]*\btriton\b|from triton\b)", text, re.MULTILINE):
        return "triton"
    return "cuda" if "__global__" in text or re.search(r"\bcuda_module\b|\.cu\b", text) else "python"
