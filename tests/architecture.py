"""The table of files: a row for each file of ``src/opwright``, from its docstring's first paragraph.

``python -m tests.architecture`` prints it. docs/architecture.md describes the layers; ``test_docs.py`` compares its
table of layers with the folders.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests import REPOSITORY

__all__ = ["DOCUMENT", "files", "layers_described", "layers_there", "summary"]

DOCUMENT = REPOSITORY / "docs" / "architecture.md"
_ROOT = REPOSITORY / "src" / "opwright"


def files() -> Iterator[Path]:
    """Every Python file of the package."""
    yield from sorted(_ROOT.rglob("*.py"))


def summary(file: Path) -> str:
    """The first paragraph of a module's docstring, in one line of Markdown; empty if it has none."""
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(docstring.split("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")


def layers_there() -> set[str]:
    """The folders (``checks/``) and files (``errors``) at the top of the package."""
    folders = {f"{f.parent.name}/" for f in _ROOT.glob("*/__init__.py")}
    return folders | {f.stem for f in _ROOT.glob("*.py") if not f.stem.startswith("__")}


def layers_described(document: str) -> list[str]:
    """The layers in the document's table of layers, in its order."""
    _, _, rest = document.partition("| layer |")
    rows = [line for line in rest.partition("\n\n")[0].splitlines()[2:] if line.startswith("|")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


def _lines() -> Iterator[str]:
    leaves = [f for f in sorted(_ROOT.glob("*.py")) if not f.stem.startswith("__")]
    yield from _table("src/opwright", "", leaves)
    for folder in sorted({f.parent for f in files()} - {_ROOT}):
        beside = sorted(set(folder.glob("*.py")) - {folder / "__init__.py"})
        yield from _table(folder.relative_to(_ROOT).as_posix(), summary(folder / "__init__.py"), beside)


def _table(title: str, text: str, beside: list[Path]) -> Iterator[str]:
    yield f"\n### `{title}/`\n\n{text}"
    if beside:
        yield "\n| file | what it holds |\n|---|---|"
    for file in beside:
        yield f"| `{file.name}` | {summary(file)} |"


if __name__ == "__main__":
    print("\n".join(_lines()))
