"""Where the kernels of operators are defined."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from opwright.report.on_lines.located import Place
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op

__all__ = ["places_of"]


def places_of(operators: Iterable[Op]) -> dict[tuple[str, str], Place]:
    """The places of kernels and references, by operator and kernel."""
    found: dict[tuple[str, str], Place] = {}
    for operator in operators:
        name = operator.contract.qualname
        found[name, REFERENCE] = _place(operator.contract.function, operator.contract.file)
        for kernel in operator.kernels.values():
            found[name, kernel.name] = _place(kernel.spec.source, operator.contract.file)
    return found


def _place(source: Any, otherwise: str | None) -> Place:
    if isinstance(source, Path):
        return Place(source)
    code = getattr(inspect.unwrap(source), "__code__", None)
    if code is None or not Path(code.co_filename).is_file():
        return Place(Path(otherwise or "."))
    return Place(Path(code.co_filename), code.co_firstlineno)
