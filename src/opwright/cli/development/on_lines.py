"""``--sarif`` and ``--annotations`` of ``opwright check``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import opwright

if TYPE_CHECKING:
    from opwright.results import CheckReport

__all__ = ["Annotations", "write_on_lines"]


class Annotations(StrEnum):
    """Whose annotations are printed."""

    github = "github"


def write_on_lines(
    report: CheckReport, targets: Sequence[str], sarif: Path | None, shown_as: Annotations | None
) -> None:
    """Write the findings of a report with their lines."""
    if sarif is None and shown_as is None:
        return
    from opwright.report.files import write_text
    from opwright.report.on_lines.github import annotation_lines
    from opwright.report.on_lines.located import located
    from opwright.report.on_lines.sarif import to_sarif
    from opwright.runtime.targets import load_target
    from opwright.watching.places import places_of

    operators = [operator for target in targets for operator in load_target(target)]
    found = located(report, places_of(operators))
    if sarif is not None:
        write_text(json.dumps(to_sarif(found, _questions(), opwright.__version__), indent=1) + "\n", sarif)
    for line in annotation_lines(found) if shown_as is not None else ():
        print(line)


def _questions() -> dict[str, str]:
    from opwright.checks.table import CHECKS
    from opwright.report.on_lines.located import rule_of

    return {rule_of(check.name): check.question for check in CHECKS.values()}
