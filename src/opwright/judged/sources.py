"""Runs the files of a task: with other values for its constants, and, for a candidate, under its own name."""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opwright.errors import TargetError
from opwright.import_file import import_file

__all__ = ["Source", "are_plain", "line_of", "load_candidate"]


class Source:
    """The file of a reference. Its constants are the integers that it assigns to names at module level."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            self._tree = ast.parse(file.read_text(), str(file))
        except (OSError, UnicodeDecodeError) as error:
            raise TargetError(f"{file} cannot be read: {error}", fix="name a Python file") from None
        except SyntaxError as error:
            raise TargetError(f"{file}:{error.lineno}: {error.msg}", fix="correct the file") from None

    @functools.cached_property
    def constants(self) -> dict[str, int]:
        """The constants that are assigned once, and as a number: ``N = 2048 * 2`` is one, ``n = f()`` is not."""
        found: dict[str, list[int | None]] = {}
        for node in self._tree.body:
            for name in _assigned(node):
                found.setdefault(name, []).append(_integer(node.value) if isinstance(node, ast.Assign) else None)
        return {name: values[0] for name, values in found.items() if len(values) == 1 and values[0] is not None}

    def plain_inputs(self, function: str) -> list[bool]:
        """For each element of the list that a function returns, whether it is random numbers that do not depend on each
        other, as ``torch.rand`` draws them, perhaps scaled. What cannot be seen to be so is not. Empty if the function
        returns no list that is written out."""
        found = [n for n in self._tree.body if isinstance(n, ast.FunctionDef) and n.name == function]
        if len(found) != 1 or not isinstance(found[0].body[-1], ast.Return):
            return []
        return are_plain(found[0], found[0].body[-1].value)

    def defined(self) -> set[str]:
        """The functions and classes of the file."""
        return {n.name for n in self._tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}

    def run(self, constants: Mapping[str, int]) -> dict[str, Any]:
        """The names of the file, with these values in the place of its own."""
        name = f"{self.file.stem}_{_digest(self.file, sorted(constants.items()))}"
        tree = _with_constants(self._tree, constants)
        module = types.ModuleType(name)
        vars(module)["__file__"] = str(self.file)
        sys.modules[name] = module  # dataclasses look up the module that defines them
        try:
            exec(compile(tree, str(self.file), "exec"), vars(module))
        finally:
            del sys.modules[name]
        return vars(module)


def are_plain(function: ast.FunctionDef, listed: ast.expr | None) -> list[bool]:
    """The same for the elements of an expression in a function."""
    assigned = dict[str, list[ast.expr]]()
    for node in ast.walk(function):
        for name in _assigned(node) if isinstance(node, ast.stmt) else ():
            assigned.setdefault(name, []).append(getattr(node, "value", None) or ast.Constant(None))
    once = {name: values[0] for name, values in assigned.items() if len(values) == 1}
    return [_is_plain(e, once) for e in listed.elts] if isinstance(listed, ast.List | ast.Tuple) else []


def load_candidate(file: Path) -> dict[str, Any]:
    """The names of a candidate's file. It is imported as a real file, which Triton reads its source from."""
    return vars(import_file(file, f"candidate_{_digest(file)}"))


def line_of(file: Path, entry: str) -> int:
    """The line on which a class or a function begins; 1 if the file has it on none, or on several."""
    lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
    begins = re.compile(rf"(async def|def|class) {re.escape(entry)}\b|{re.escape(entry)}\s*=[^=]")
    found = [number for number, line in enumerate(lines, 1) if begins.match(line)]
    return found[0] if len(found) == 1 else 1


def _digest(file: Path, *more: Any) -> str:
    return hashlib.sha256(repr((str(file.resolve()), *more)).encode()).hexdigest()[:12]


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [n.id for target in targets if target is not None for n in ast.walk(target) if isinstance(n, ast.Name)]


_DRAWS = frozenset({"torch.rand", "torch.randn", "torch.randint"})
_KEEPS_PLAIN = frozenset({"cuda", "to", "half", "float", "double", "bfloat16", "contiguous", "requires_grad_", "type"})


def _is_plain(node: ast.expr, assigned: Mapping[str, ast.expr]) -> bool:
    match node:
        case ast.Name(id=name) if name in assigned:
            return _is_plain(assigned[name], {n: e for n, e in assigned.items() if n != name})
        case ast.Call(func=ast.Attribute(value=value, attr=attr)):
            return ast.unparse(node.func) in _DRAWS or (attr in _KEEPS_PLAIN and _is_plain(value, assigned))
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div() | ast.Add() | ast.Sub(), right=ast.Constant()):
            return _is_plain(left, assigned)
        case ast.BinOp(left=ast.Constant(), op=ast.Mult() | ast.Add() | ast.Sub(), right=right):
            return _is_plain(right, assigned)
    return False


def _integer(node: ast.expr) -> int | None:
    """The value of an expression of integers only; None of any other."""
    allowed = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    if not all(isinstance(n, allowed) for n in ast.walk(node)):
        return None
    try:
        value = eval(compile(ast.Expression(node), "", "eval"), {})
    except (ArithmeticError, TypeError):
        return None
    return value if type(value) is int and 0 < value < 2**40 else None


def _with_constants(tree: ast.Module, constants: Mapping[str, int]) -> ast.Module:
    body = list[ast.stmt]()
    for node in tree.body:
        names = _assigned(node)
        if isinstance(node, ast.Assign) and len(names) == 1 and names[0] in constants:
            value = ast.copy_location(ast.Constant(constants[names[0]]), node.value)
            node = ast.copy_location(ast.Assign(node.targets, value), node)
        body.append(node)
    return ast.Module(body, tree.type_ignores)
