"""Finds the imports of a module, and renames modules in them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from opwright.errors import TargetError

__all__ = ["Imported", "imports_of", "rename_imports"]


@dataclass(frozen=True)
class Imported:
    """One import statement. ``module`` is absolute; ``names`` are the imported names (empty: the module itself).
    ``optional``: within a ``try``, so that the module may work without it."""

    module: str
    names: tuple[str, ...]
    line: int
    optional: bool = False


def imports_of(text: str, module: str, is_package: bool) -> list[Imported]:
    """Every import in a text, at any level, except those for type checkers only.

    Args:
        module: the text's own dotted name, the base of relative imports.
        is_package: whether it is a package's ``__init__``.
    """
    return [_read(node, alias, module, is_package, optional) for node, alias, optional in _statements(ast.parse(text))]


def _statements(
    tree: ast.AST, optional: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, ast.alias | None, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                yield from _statements(ast.Module([child], []), optional)
        elif isinstance(node, ast.Import):
            yield from ((node, alias, optional) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node, None, optional
        else:
            yield from _statements(node, optional or isinstance(node, ast.Try))


def _read(
    node: ast.Import | ast.ImportFrom, alias: ast.alias | None, module: str, is_package: bool, optional: bool
) -> Imported:
    if isinstance(node, ast.Import):
        assert alias is not None  # an import statement has one alias or more
        return Imported(alias.name, (), node.lineno, optional)
    names = tuple(a.name for a in node.names)
    if not node.level:
        return Imported(node.module or "", names, node.lineno, optional)
    parts = module.split(".") if is_package else module.split(".")[:-1]
    base = parts[: len(parts) - node.level + 1]
    return Imported(".".join([*base, *([node.module] if node.module else [])]), names, node.lineno, optional)


def rename_imports(text: str, rename: Callable[[str], str | None], where: str) -> str:
    """The text with modules in absolute imports renamed; everything else, including comments, is unchanged.

    Args:
        rename: returns a module's new name, or None if it keeps its own.
        where: the file, for errors.

    Raises:
        TargetError: ``import a.b`` without ``as`` of a module with a new name: ``a`` would not be defined.
    """
    lines = text.splitlines(keepends=True)
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import | ast.ImportFrom)]
    for node in sorted(nodes, key=lambda n: -n.lineno):
        written = _renamed(node, rename, where)
        if written is None:
            continue
        assert node.end_lineno is not None  # it was parsed from a text
        first, last = lines[node.lineno - 1].encode(), lines[node.end_lineno - 1].encode()
        before, after = first[: node.col_offset].decode(), last[node.end_col_offset :].decode()
        # As many lines as before, so that line numbers in tracebacks stay the same.
        padding = "\n" * (node.end_lineno - node.lineno)
        lines[node.lineno - 1 : node.end_lineno] = [f"{before}{written}{after.rstrip()}\n{padding}"]
    return "".join(lines)


def _renamed(node: ast.Import | ast.ImportFrom, rename: Callable[[str], str | None], where: str) -> str | None:
    if isinstance(node, ast.ImportFrom):
        new = rename(node.module) if node.module and not node.level else None
        return None if new is None else f"from {new} import {', '.join(map(ast.unparse, node.names))}"
    new_names = [rename(alias.name) for alias in node.names]
    if not any(new_names):
        return None
    return "; ".join(_import(alias, new, where, node.lineno) for alias, new in zip(node.names, new_names, strict=True))


def _import(alias: ast.alias, new: str | None, where: str, line: int) -> str:
    if new is None:
        return f"import {ast.unparse(alias)}"
    if alias.asname is None and "." in alias.name:
        raise TargetError(
            f"{where}:{line}: `import {alias.name}` cannot be shipped: the module is called {new} in the package",
            fix=f"write `import {alias.name} as name`, or `from {alias.name} import name`",
        )
    return f"import {new} as {alias.asname or alias.name}"
