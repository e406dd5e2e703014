"""``--sarif`` and ``--annotations`` of ``opwright check``."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import opwright

if TYPE_CHECKING:
    from opwright.report.on_lines.located import Located, Place
    from opwright.results import CheckReport

__all__ = ["Annotations", "places_of", "write_on_lines"]


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

    found: list[Located] = located(report, places_of(targets))
    if sarif is not None:
        write_text(json.dumps(to_sarif(found, _questions(), opwright.__version__), indent=1) + "\n", sarif)
    for line in annotation_lines(found) if shown_as is not None else ():
        print(line)


def places_of(targets: Sequence[str]) -> dict[tuple[str, str], Place]:
    """Where the kernels and references of some targets are defined."""
    from opwright.runtime.languages import REFERENCE
    from opwright.runtime.targets import load_target

    found: dict[tuple[str, str], Place] = {}
    for operator in (operator for target in targets for operator in load_target(target)):
        name = operator.contract.qualname
        found[name, REFERENCE] = _place(operator.contract.function, operator.contract.file)
        for kernel in operator.kernels.values():
            found[name, kernel.name] = _place(kernel.spec.source, operator.contract.file)
    return found


def _place(source: Any, otherwise: str | None) -> Place:
    from opwright.report.on_lines.located import Place

    if isinstance(source, Path):
        return Place(source)
    code = getattr(inspect.unwrap(source), "__code__", None)
    if code is None or not Path(code.co_filename).is_file():
        return Place(Path(otherwise or "."))
    return Place(Path(code.co_filename), code.co_firstlineno)


def _questions() -> dict[str, str]:
    from opwright.checks.table import CHECKS
    from opwright.report.on_lines.located import rule_of

    return {rule_of(check.name): check.question for check in CHECKS.values()}
