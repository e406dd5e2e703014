"""The tables of docs/architecture.md: a row for each file of ``src/opwright``, from its docstring's first paragraph.

``python -m tests.architecture`` writes them anew; ``test_imports.py`` fails where they differ from the source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests import REPOSITORY

__all__ = ["DOCUMENT", "with_tables"]

DOCUMENT = REPOSITORY / "docs" / "architecture.md"
_ROOT = REPOSITORY / "src" / "opwright"
_BEGIN, _END = "<!-- files -->\n", "<!-- end of files -->\n"


def with_tables(document: str) -> str:
    """The document with the tables that follow from the source."""
    before, _, rest = document.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert end, f"{DOCUMENT.name} has lost its marks {_BEGIN.strip()} and {_END.strip()}"
    return before + _BEGIN + "\n".join(_lines()) + "\n" + end + after


def _lines() -> Iterator[str]:
    leaves = [f for f in sorted(_ROOT.glob("*.py")) if not f.stem.startswith("__")]
    yield from _table("src/opwright", "What every layer may import, and imports none.", leaves)
    for folder in sorted({f.parent for f in _ROOT.rglob("*.py")} - {_ROOT}):
        name = folder.relative_to(_ROOT).as_posix()
        yield from _table(
            name, _summary(folder / "__init__.py"), sorted(set(folder.glob("*.py")) - {folder / "__init__.py"})
        )


def _table(title: str, summary: str, files: list[Path]) -> Iterator[str]:
    yield f"\n### `{title}/`\n\n{summary}"
    if files:
        yield "\n| file | what it holds |\n|---|---|"
    for file in files:
        yield f"| `{file.name}` | {_summary(file)} |"


def _summary(file: Path) -> str:
    """The first paragraph of a module's docstring, in one line of Markdown."""
    docstring = ast.get_docstring(ast.parse(file.read_text()))
    assert docstring, f"{file} has no docstring"
    return " ".join(docstring.split("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text()))
