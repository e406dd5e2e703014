"""The hooks of pytest that ``ow.testing.collect`` gives a ``conftest.py``: its operators become tests.

The package registers no plugin of pytest. Pytest rewrites the assertions of all modules of a package that has one, so
that operators would have other code, and other fingerprints, than in the workers of a check.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opwright.errors import CheckFailedError
from opwright.testing.cases import CheckCase, cases_of, group_of
from opwright.testing.registry import collected_in

__all__ = ["HOOKS"]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """The tests of a ``conftest.py`` that calls ``ow.testing.collect``."""
    if file_path.name != "conftest.py" or not collected_in(file_path):
        return None
    made: pytest.Collector = _Operators.from_parent(parent, path=file_path)
    return made


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let each kernel run only those checks that are among the selected tests."""
    for item in session.items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        for case in (getattr(item, "_case", None), *params.values()):
            if isinstance(case, CheckCase):
                case.selection.wanted.add(case.check)


class _Operators(pytest.File):
    """The operators of one ``conftest.py``."""

    def collect(self) -> Iterator[pytest.Item]:
        for collected in collected_in(self.path):
            for case in cases_of(*collected.targets, **collected.options):
                contract = case.selection.op.contract
                yield _Check.from_parent(self, name=f"{contract.name}[{case.id}]", case=case)


class _Check(pytest.Item):
    """One check of one kernel."""

    def __init__(self, *, case: Any, **options: Any) -> None:
        super().__init__(**options)
        self._case = case
        for mark in group_of(case):
            self.add_marker(mark)

    def runtest(self) -> None:
        self._case()

    def repr_failure(self, excinfo: Any, *options: Any, **more: Any) -> Any:
        """The findings, as a terminal shows them; a traceback of anything else."""
        if isinstance(excinfo.value, CheckFailedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *options, **more)

    def reportinfo(self) -> tuple[Path | str, int | None, str]:
        contract = self._case.selection.op.contract
        line = contract.function.__code__.co_firstlineno - 1
        return contract.file or self.path, line, f"{contract.qualname} {self._case.id}"


# What a ``conftest.py`` gets.
HOOKS = {hook.__name__: hook for hook in (pytest_collect_file, pytest_collection_finish)}
