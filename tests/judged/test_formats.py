"""The table of formats: what the command and its guide list."""

from __future__ import annotations

import importlib
from pathlib import Path

from opwright.judged.formats import FORMATS, read_tasks
from opwright.judged.packages import missing_package
from tests.judged.programs import SOFTMAX, softmax_candidate

_GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "judge.md"


def test_the_command_and_its_guide_list_every_format() -> None:
    command = importlib.import_module("opwright.cli.judge")
    assert command.FORMATS.split(", ") == list(FORMATS)
    listed = [line.split("`")[1] for line in _GUIDE.read_text().splitlines() if line.startswith("| `")]
    assert sorted(listed) == sorted(["--format", *FORMATS])


def test_a_candidate_whose_packages_are_missing_is_said_and_the_others_are_checked(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(SOFTMAX)
    (tmp_path / "right.py").write_text(softmax_candidate())
    (tmp_path / "other.py").write_text("import no_such_package.part\n" + softmax_candidate())
    files = [str(tmp_path / f"{name}.py") for name in ("problem", "right", "other")]
    (task,), unread = read_tasks(files, tmp_path / "scratch")
    assert [c.name for c in task.candidates] == ["right"]
    assert unread == [(files[2], "the module 'no_such_package' must be installed\n  → install its package")]


def test_files_near_a_candidate_are_no_missing_packages(tmp_path: Path) -> None:
    (tmp_path / "utilities.py").touch()
    guarded = "try:\n    import no_such_package\nexcept ImportError:\n    pass\n"
    text = f"import os\nimport utilities\nfrom . import x\n{guarded}"
    assert missing_package(text, tmp_path / "a" / "candidate.py") == ""
    assert missing_package("import (", tmp_path / "candidate.py") == ""
