"""The plugin of pytest, which the package registers: operators of ``ow.testing.collect`` become tests.

It is imported by every suite, so it imports nothing of opwright before a ``conftest.py`` has done so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["pytest_collect_file", "pytest_collection_finish", "pytest_configure"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "xdist_group(name): tests that one process of pytest-xdist runs")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """The tests of a ``conftest.py`` that calls ``ow.testing.collect``."""
    collected = sys.modules.get("opwright.testing.collected")
    if collected is None or file_path.name != "conftest.py" or not collected.collected_in(file_path):
        return None
    made: pytest.Collector = _Operators.from_parent(parent, path=file_path)
    return made


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let each kernel run only those checks that are among the selected tests."""
    module = sys.modules.get("opwright.testing.cases")
    for item in session.items if module is not None else ():
        params = getattr(getattr(item, "callspec", None), "params", {})
        for case in (getattr(item, "_case", None), *params.values()):
            if isinstance(case, module.CheckCase):  # type: ignore[union-attr]  # as the loop says
                case.selection.wanted.add(case.check)


class _Operators(pytest.File):
    """The operators of one ``conftest.py``."""

    def collect(self) -> Iterator[pytest.Item]:
        from opwright.testing.cases import cases_of
        from opwright.testing.collected import collected_in

        for collected in collected_in(self.path):
            for case in cases_of(*collected.targets, **collected.options):
                contract = case.selection.op.contract
                yield _Check.from_parent(self, name=f"{contract.name}[{case.id}]", case=case)


class _Check(pytest.Item):
    """One check of one kernel."""

    def __init__(self, *, case: Any, **options: Any) -> None:
        super().__init__(**options)
        self._case = case
        contract = case.selection.op.contract
        self.add_marker(pytest.mark.xdist_group(f"{contract.qualname}-{case.selection.kernel}"))

    def runtest(self) -> None:
        self._case()

    def repr_failure(self, excinfo: Any, *options: Any, **more: Any) -> Any:
        """The findings, as a terminal shows them; a traceback of anything else."""
        from opwright.errors import CheckFailedError

        if isinstance(excinfo.value, CheckFailedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *options, **more)

    def reportinfo(self) -> tuple[Path | str, int | None, str]:
        contract = self._case.selection.op.contract
        line = contract.function.__code__.co_firstlineno - 1
        return contract.file or self.path, line, f"{contract.qualname} {self._case.id}"
