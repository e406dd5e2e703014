"""Applies an edit to an operator in a worker process. The process that reports never holds a mutant."""

from __future__ import annotations

import dataclasses
import linecache
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.errors import CheckError
from opwright.mutation.further import Further
from opwright.mutation.sources import CUDA, FILE, PYTHON, functions_reached, held_by, modules_reached
from opwright.runtime.kernel import Kernel
from opwright.runtime.op import Op
from opwright.runtime.targets import ImportPath, find_import_path, import_operator

__all__ = ["Patch", "PatchedOp", "mutant_of"]


@dataclass(frozen=True)
class Patch:
    """A changed text of one kernel.

    Attributes:
        kind: what text it is (``sources``); empty if the kernel stays as it is.
        original: the text before, or the name of the file of changed functions.
        text: the changed text.
        file: where the changed text is stored.
        further: inputs to check besides those of the contract.
    """

    kernel: str
    kind: str = ""
    original: str = ""
    text: str = ""
    file: Path = Path()
    further: Further | None = None


class PatchedOp(Op):
    """An operator that becomes a mutant when a worker process receives it. In this process it is the operator as it is,
    and not registered with torch a second time."""

    _patch: Patch
    _original: Op
    _path: ImportPath | None

    def _by_value(self) -> tuple[Any, ...]:
        if self._path is None:
            return patched, (self._original, self._patch)
        return _imported, (self._path, self._original.fingerprint, self._patch)


def mutant_of(operator: Op, patch: Patch) -> PatchedOp:
    """The operator with a patch to be applied in workers."""
    made = object.__new__(PatchedOp)
    vars(made).update(vars(operator))
    path = find_import_path(operator)
    vars(made).update(_patch=patch, _original=operator, _path=path, _brings_others=path is None)
    return made


def _imported(path: ImportPath, fingerprint: str, patch: Patch) -> Op:
    operator = import_operator(path)
    if operator is None or operator.fingerprint != fingerprint:
        raise CheckError(f"the module that defines {path.qualname} holds another version", fix="import it again")
    return patched(operator, patch)


def patched(operator: Op, patch: Patch) -> Op:
    """Apply a patch to an operator for the rest of this process."""
    kernel = operator.kernels[patch.kernel]
    if patch.kind == FILE:
        operator.kernels[patch.kernel] = Kernel(dataclasses.replace(kernel.spec, source=patch.file), operator.contract)
    elif patch.kind == PYTHON:
        _change_functions(kernel.spec.source, patch)
    elif patch.kind == CUDA:
        for module in modules_reached(kernel.spec.source):
            if module.source.text == patch.original:
                module.source = dataclasses.replace(module.source, text=patch.text)
                vars(module).pop("fingerprint", None)
    if patch.further is not None:
        patch.further.add_to(operator)
    operator._changed()
    return operator


def _change_functions(launcher: Any, patch: Patch) -> None:
    """Give the functions of a file their code in the changed text, which has the same lines."""
    file = str(patch.file)
    linecache.cache[file] = (len(patch.text), None, patch.text.splitlines(keepends=True), file)
    module = compile(patch.text, file, "exec", dont_inherit=True)
    changed = {(c.co_qualname, c.co_firstlineno): c for c in _codes_in(module)}
    functions = [f for f in functions_reached(launcher) if f.__code__.co_filename == patch.original]
    for function in functions:
        code = changed.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
        if code is not None and len(code.co_freevars) == len(function.__code__.co_freevars):
            function.__code__ = code
    for value in {id(v): v for f in functions for v in held_by(f)}.values():
        _decorate_again(value)


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes_in(constant)


def _decorate_again(kernel: Any) -> None:
    """Triton reads a kernel's source when it is decorated."""
    while type(kernel).__module__.startswith("triton.runtime") and hasattr(kernel, "fn"):
        if isinstance(kernel.fn, types.FunctionType):
            vars(kernel).update(vars(type(kernel)(kernel.fn)))
        kernel = kernel.fn
