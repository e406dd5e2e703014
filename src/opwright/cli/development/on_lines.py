"""``--sarif`` and ``--annotations``: findings on the lines that they are about."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import opwright

if TYPE_CHECKING:
    from opwright.report.on_lines.located import Located

__all__ = ["Annotations", "Sarif", "ShownAs", "write_on_lines"]


class Annotations(StrEnum):
    """Whose annotations are printed."""

    github = "github"


Sarif = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the findings in SARIF, with their lines.")]
ShownAs = Annotated[Annotations | None, typer.Option(help="Also print the findings as annotations of GitHub.")]


def write_on_lines(find: Callable[[], list[Located]], sarif: Path | None, shown_as: Annotations | None) -> None:
    """Write findings with their lines, which are only looked for if an option asks for them."""
    if sarif is None and shown_as is None:
        return
    from opwright.report.files import write_text
    from opwright.report.on_lines.github import annotation_lines
    from opwright.report.on_lines.sarif import to_sarif

    found = find()
    if sarif is not None:
        write_text(json.dumps(to_sarif(found, _questions(), opwright.__version__), indent=1) + "\n", sarif)
    for line in annotation_lines(found) if shown_as is not None else ():
        print(line)


def _questions() -> dict[str, str]:
    from opwright.checks.table import CHECKS
    from opwright.report.on_lines.located import rule_of

    return {rule_of(check.name): check.question for check in CHECKS.values()}
