"""Registrations that published sources end with: ``TORCH_LIBRARY``, its stable forms, and ``PYBIND11_MODULE``.

opwright registers each operator itself. A source's own registration would take the operator's place behind the checks
of its arguments, or end the process as a second definition. So kernels are built without them, and the schemas that
they state are compared with the operator's first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opwright.backends.simulation import closing_bracket, parsed
from opwright.contract.contract import Contract
from opwright.errors import SignatureMismatchError
from opwright.internals.registration import types_of_schema

__all__ = ["Registration", "compare_schemas", "implementations", "registrations", "without_registrations"]

_MACRO = re.compile(r"\b(?:STABLE_)?TORCH_LIBRARY(?:_FRAGMENT|_IMPL)?\s*\(|\bPYBIND11_MODULE\s*\(")
_LITERAL = re.compile(r'"((?:\\.|[^"\\])*)"')
_DEFINITION = re.compile(r"\.\s*def\s*\(")
_IMPLEMENTATION = re.compile(r"\.\s*(?:def|impl)\s*\(")
_FUNCTION = re.compile(r"&\s*((?:\w+\s*::\s*)*\w+)|TORCH_(?:FN|BOX)\s*\(\s*((?:\w+\s*::\s*)*\w+)")


@dataclass(frozen=True)
class Registration:
    """One block, with the part of the text that it takes.

    Attributes:
        title: the macro with its arguments.
        line: of the macro.
    """

    title: str
    line: int
    begin: int
    end: int


def registrations(text: str) -> Iterator[Registration]:
    """The blocks of a source. What merely names such a macro, as in ``#define`` or a comment, is none."""
    code = parsed(text).code
    for found in _MACRO.finditer(code):
        head = closing_bracket(code, found.end() - 1)
        body = None if head is None else re.compile(r"\s*\{").match(code, head + 1)
        end = None if body is None else closing_bracket(code, body.end() - 1)
        line_start = code.rfind("\n", 0, found.start()) + 1
        if head is None or end is None or code[line_start : found.start()].lstrip().startswith("#"):
            continue
        title = re.sub(r"\s+", " ", text[found.start() : head + 1])
        yield Registration(title, code.count("\n", 0, found.start()) + 1, found.start(), end + 1)


def without_registrations(text: str, file: Path) -> str:
    """The source without its blocks; line numbers and the file's name stay. The same text if there are none."""
    found = list(registrations(text))
    if not found:
        return text
    left = parsed(text).without((one.begin, one.end) for one in found)
    return f'#line 1 "{file}"\n{left.text}'


def compare_schemas(text: str, file: Path, contract: Contract) -> None:
    """Refuse a source that registers an operator of this name with another schema.

    Raises:
        SignatureMismatchError: names the line, and both schemas.
    """
    expected = types_of_schema(contract.name + contract.schema)
    for block in registrations(text):
        for written in _first_literals(text, block, _DEFINITION):
            name, bracket, _ = written.partition("(")
            if not bracket or name.rpartition("::")[2].partition(".")[0].strip() != contract.name:
                continue
            types = types_of_schema(written)
            if expected is not None and types is not None and types != expected:
                raise SignatureMismatchError(
                    f"{contract.qualname}: {file.name}:{block.line} registers {written}, but the operator is "
                    f"{contract.name}{contract.schema}",
                    fix="correct the one that is wrong; opwright registers the operator itself",
                )


def implementations(text: str, name: str) -> list[str]:
    """The functions that a source registers under an operator's name."""
    found = []
    for block in registrations(text):
        for call in _IMPLEMENTATION.finditer(text, block.begin, block.end):
            arguments = text[call.end() : closing_bracket(parsed(text).code, call.end() - 1)]
            literal, function = _LITERAL.search(arguments), _FUNCTION.search(arguments)
            if literal and function and literal[1].partition("(")[0].rpartition("::")[2].strip() == name:
                found.append(re.sub(r"\s", "", function[1] or function[2]))
    return found


def _first_literals(text: str, block: Registration, before: re.Pattern[str]) -> Iterator[str]:
    """The first string of each call in a block; strings that follow one another are one."""
    body = text[block.begin : block.end]
    for call in before.finditer(body):
        parts, position = [], call.end()
        while found := re.compile(r"\s*" + _LITERAL.pattern).match(body, position):
            parts.append(found[1])
            position = found.end()
        if parts:
            yield "".join(parts)
