"""The table of checks: one file each, with the check's name, and a descriptor that says what it does."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from opwright.checks.check import LEVELS, Check
from opwright.checks.table import CHECKS, GROUPS
from opwright.results import Status
from tests import warm


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: check.name)
def test_its_file_has_its_name(check: Check) -> None:
    file = Path(inspect.getfile(check.run))
    assert file.stem == re.sub(r"[^a-z0-9]+", "_", check.name.lower())
    assert check.question.endswith("?")
    assert len(check.question.split()) <= 25


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: check.name)
def test_one_that_warns_only_fails_no_kernel(check: Check) -> None:
    """A failing finding is made by ``context.failed``, by a checker of cases, or with the status itself."""
    source = Path(inspect.getfile(check.run)).read_text()
    fails = re.search(r"context\.failed\(|Status\.FAIL,|NAME, Status\.FAIL", source)
    assert not (fails and check.worst is Status.WARNING), fails


def test_a_check_that_needs_much_memory_or_a_tool_or_accuses_the_author_runs_at_level_full() -> None:
    at_full = {"large offsets", "sanitizer", "cheats"}
    assert {check.name for check in CHECKS.values() if check.levels != LEVELS} == at_full


def test_every_check_but_the_last_of_each_is_in_one_slice() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(set(CHECKS) - {"afterwards"})


def test_the_command_lists_them() -> None:
    listed = warm.run_module("opwright", "check", "--list", env={"COLUMNS": "200"}).stdout
    assert [name for name in CHECKS if f"\n{name} " not in listed] == []
    assert "Do the second derivatives of a custom gradient match the reference's?" in listed
