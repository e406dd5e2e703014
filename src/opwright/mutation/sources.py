"""What may be changed of a kernel: its launcher, the functions that it calls, and its code in Triton, CUDA or C++."""

from __future__ import annotations

import ast
import functools
import linecache
import re
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.backends.cuda.module import CudaKernel, CudaModule
from opwright.backends.reachable import names_used
from opwright.backends.simulation import included_files
from opwright.mutation import c_edits, python_edits
from opwright.mutation.edits import Edit
from opwright.runtime.op import Op

__all__ = ["CUDA", "FILE", "PYTHON", "Source", "functions_reached", "held_by", "modules_reached", "sources_of"]

# Functions of a Python file, as the operator's module has defined them; the text of an ``ow.cuda_module``; the file
# that a kernel was attached from.
PYTHON, CUDA, FILE = "functions", "cuda module", "file"


@dataclass(frozen=True)
class Source:
    """A text with code of a kernel.

    Attributes:
        name: as reports name it.
        edits: all changes that may be made of it.
    """

    kind: str
    name: str
    text: str
    edits: tuple[Edit, ...]
    path: Path | None = None


def sources_of(operator: Op, kernel: str) -> tuple[list[Source], list[str]]:
    """The texts of a kernel, and what of it is not mutated, with the reason."""
    spec = operator.kernels[kernel].spec
    if isinstance(spec.source, Path):
        return _of_file(spec.source, spec.entry, spec.backend)
    found, left = _of_functions(operator, spec.source)
    for module, kernels in modules_reached(spec.source).items():
        name = str(module.source.path) if module.source.path else "<cuda source>"
        found.append(_of_c(CUDA, name, module.source.text, kernels, module.source.path))
        left += [f"{header.name}: a header" for header in module.source.headers()]
    return found, left


# -- Python -----------------------------------------------------------------------------------------------------------


def _of_functions(operator: Op, launcher: Any) -> tuple[list[Source], list[str]]:
    of_reference = {id(f) for f in functions_reached(operator.contract.function)}
    chosen: dict[str, list[types.FunctionType]] = {}
    left: list[str] = []
    for function in functions_reached(launcher):
        if id(function) in of_reference:
            left.append(f"{function.__qualname__}: the reference calls it, too")
        elif function.__name__ == "<lambda>":
            left.append(f"line {function.__code__.co_firstlineno}: a lambda")
        else:
            chosen.setdefault(function.__code__.co_filename, []).append(function)
    found = []
    for file, functions in chosen.items():
        text = "".join(linecache.getlines(file, functions[0].__globals__))
        nodes = list(_definitions(text, functions)) if text else []
        if not nodes:
            left.append(f"{functions[0].__qualname__}: there is no source of it")
            continue
        found.append(Source(PYTHON, file, text, tuple(python_edits.edits_of(nodes, text)), Path(file)))
    return found, left


def _definitions(text: str, functions: Sequence[types.FunctionType]) -> Iterator[python_edits.Function]:
    """The outermost definitions of some functions in the text of their file."""
    first_lines = {f.__code__.co_firstlineno for f in functions}

    def walk(node: ast.AST) -> Iterator[python_edits.Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, python_edits.Function):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                if first in first_lines:
                    yield child
                    continue
            yield from walk(child)

    yield from walk(ast.parse(text))


def functions_reached(launcher: Any) -> Iterator[types.FunctionType]:
    """A function, and those of its module that it calls; of Triton kernels, their functions."""
    seen: set[int] = set()

    def walk(value: Any, module: str | None) -> Iterator[types.FunctionType]:
        function = _unwrapped(value)
        if not isinstance(function, types.FunctionType) or id(function) in seen:
            return
        if module is not None and function.__module__ != module:
            return
        seen.add(id(function))
        yield function
        for held in held_by(function):
            yield from walk(held, function.__module__)

    yield from walk(launcher, None)


def _unwrapped(value: Any) -> Any:
    """The function in an object that wraps one: Triton's kernels, cached and decorated functions."""
    while not isinstance(value, types.FunctionType):
        inner = getattr(value, "fn", None) if type(value).__module__.startswith("triton") else None
        inner = inner if inner is not None else vars(value).get("__wrapped__") if hasattr(value, "__dict__") else None
        if inner is None or isinstance(value, Op):
            return value
        value = inner
    return value


def held_by(function: types.FunctionType) -> Iterator[Any]:
    """The values that a function uses by name, and what lists, tuples and dictionaries among them hold."""
    values = [function.__globals__.get(name) for name in names_used(function.__code__)]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # a name of an enclosing function that is not assigned yet
            continue
    for value in values:
        yield value
        if isinstance(value, functools.partial):
            yield value.func
        if isinstance(value, list | tuple | dict) and len(value) < 100:
            yield from value.values() if isinstance(value, dict) else value


def _constants(code: types.CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _constants(constant)
        elif isinstance(constant, str):
            yield constant


# -- CUDA and C++ -----------------------------------------------------------------------------------------------------


def modules_reached(launcher: Any) -> dict[CudaModule, set[str]]:
    """The CUDA modules that a launcher uses, each with the names of the kernels that it may launch."""
    found: dict[CudaModule, set[str]] = {}
    functions = list(functions_reached(launcher))
    texts = {_bare(text) for f in functions for text in _constants(f.__code__)}
    for value in (held for f in functions for held in held_by(f)):
        if isinstance(value, CudaKernel):
            found.setdefault(value.module, set()).add(_bare(value.name))
        elif isinstance(value, CudaModule):
            named = texts & set(value.defined)
            found.setdefault(value, set()).update(named or value.defined)
    return found


def _bare(name: str) -> str:
    return name.split("<")[0].strip().rpartition("::")[2]


def _of_c(kind: str, name: str, text: str, entries: Iterable[str], path: Path | None) -> Source:
    spans = _reached_in_c(text, entries)
    return Source(kind, name, text, tuple(c_edits.edits_of(spans, text)), path)


def _reached_in_c(text: str, entries: Iterable[str]) -> list[tuple[int, int]]:
    """The bodies of the entries, and of the functions that they name."""
    defined = c_edits.functions_of(text)
    return _reached(entries, defined, lambda span: re.findall(r"\w+", text[span[0] : span[1]]))


def _reached(entries: Iterable[str], defined: dict[str, list[Any]], names_in: Any) -> list[Any]:
    seen: set[str] = set()
    waiting, found = [e for e in entries if e in defined], []
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for part in defined[name]:
            found.append(part)
            waiting += [n for n in names_in(part) if n in defined]
    return found


# -- files ------------------------------------------------------------------------------------------------------------


def _of_file(path: Path, entry: str, language: str) -> tuple[list[Source], list[str]]:
    text = path.read_text()
    if path.suffix == ".py":
        edits = python_edits.edits_of(_reached_in_python(text, entry), text)
        return [Source(FILE, str(path), text, tuple(edits), path)], []
    if language in ("cpp", "cuda"):
        headers = [h for h in included_files(text, path, ()) if h.parent == path.parent]
        return [_of_c(FILE, str(path), text, [entry], path)], [f"{h.name}: a header" for h in headers]
    return [], [f"{path.name}: kernels in {language} are not mutated"]


def _reached_in_python(text: str, entry: str) -> list[python_edits.Function]:
    """The definitions at the top of a file that an entry uses, directly or through names assigned at the top."""
    defined: dict[str, list[ast.stmt]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, python_edits.Function):
            defined.setdefault(node.name, []).append(node)
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Name):
                defined.setdefault(target.id, []).append(node)
    used = _reached([entry], defined, lambda node: [n.id for n in ast.walk(node) if isinstance(n, ast.Name)])
    return [node for node in used if isinstance(node, python_edits.Function)]
