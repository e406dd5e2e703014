"""Packages that a candidate imports and that are not installed: it is not wrong, it cannot run here."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["missing_package"]

# A file that a candidate imports by name is beside it, or in a folder above.
_LEVELS = 4


def missing_package(text: str, file: Path) -> str:
    """The first package that a text imports at module level and that is neither installed nor a file near ``file``;
    "" if there is none, or if the text is not Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ""
    return next((name for name in _imported(tree) if not _exists(name, file)), "")


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def _exists(name: str, file: Path) -> bool:
    if name in sys.stdlib_module_names or name in sys.modules:
        return True
    near = [folder for folder in file.resolve().parents[:_LEVELS] if (folder / f"{name}.py").exists()]
    return bool(near) or importlib.util.find_spec(name) is not None
