"""What a kernel reads besides its arguments when Triton's frontend translates it: globals, attributes of modules, what
closures hold, and defaults. ``cache_key`` has only some of them: no dtype that was imported, no attribute of a module,
no default of a helper."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

__all__ = ["PLAIN", "values_read"]

# Values whose text says all of them.
PLAIN = (bool, int, float, str, type(None))


class _NotToldError(Exception):
    """Something is read of which no text says all."""


def values_read(function: Any) -> str | None:
    """All that a jitted function and those that it calls read, as text; None if not all of it can be told."""
    try:
        return repr([*_of_function(function, set())])
    except _NotToldError:
        return None


def _of_function(function: Any, known: set[int]) -> Iterator[Any]:
    if id(function) in known:
        return
    known.add(id(function))
    plain = function.fn
    scope = {**plain.__globals__, **inspect.getclosurevars(plain).nonlocals}
    yield function.__name__, function.cache_key, bool(getattr(function, "noinline", False))
    for value in (*(plain.__defaults__ or ()), *(plain.__kwdefaults__ or {}).values()):
        yield from _of_value(value, known)
    for root, *attributes in _names_in(function.src):
        if root not in scope:  # a local variable, or one of Python's functions
            continue
        value = scope[root]
        while isinstance(value, ModuleType) and not _is_of_triton(value.__name__) and attributes:
            value = getattr(value, attributes.pop(0), None)
        yield root
        yield from _of_value(value, known)


def _of_value(value: Any, known: set[int]) -> Iterator[Any]:
    kind = type(value)
    if kind in PLAIN:
        yield kind.__name__, repr(value)
    elif kind in (tuple, list):
        yield kind.__name__, len(value)
        for each in value:
            yield from _of_value(each, known)
    elif isinstance(value, ModuleType):
        _require(_is_of_triton(value.__name__))  # else its attributes may be read by another name
    elif _is_of_triton(kind.__module__) and kind.__name__ == "constexpr":
        yield "constexpr"
        yield from _of_value(value.value, known)
    elif any(_is_of_triton(base.__module__) and base.__name__ == "dtype" for base in kind.__mro__):
        yield kind.__name__, str(value)
    elif hasattr(value, "cache_key") and inspect.isfunction(getattr(value, "fn", None)):
        if not _is_of_triton(value.fn.__module__):  # Triton's own are in the digest of Triton
            _require(kind.__name__ == "JITFunction")  # others run as Python, and may read anything
            yield from _of_function(value, known)
    else:
        _require(callable(value) and _is_of_triton(getattr(inspect.unwrap(value), "__module__", "")))


def _require(is_told: bool) -> None:
    if not is_told:
        raise _NotToldError


def _is_of_triton(module: str | None) -> bool:
    return (module or "").split(".")[0] == "triton"


@functools.lru_cache(256)
def _names_in(source: str) -> tuple[tuple[str, ...], ...]:
    """The names that a function's source has, each with the attributes that are read of it."""
    found = _Names()
    found.visit(ast.parse(source))
    return tuple(sorted(found.names))


class _Names(ast.NodeVisitor):
    def __init__(self) -> None:
        self.names: set[tuple[str, ...]] = set()
        self._parameters: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        arguments = node.args
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
        self._parameters |= {a.arg for a in every if a is not None}
        # Annotations of parameters decide their kinds, of which the key has the result.
        for part in (*arguments.defaults, *arguments.kw_defaults, *node.body):
            if part is not None:
                self.visit(part)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        attributes, inner = [node.attr], node.value
        while isinstance(inner, ast.Attribute):
            attributes.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name):
            self._add(inner.id, *reversed(attributes))
        else:
            self.visit(inner)

    def visit_Name(self, node: ast.Name) -> None:
        self._add(node.id)

    def _add(self, root: str, *attributes: str) -> None:
        if root not in self._parameters:
            self.names.add((root, *attributes))
