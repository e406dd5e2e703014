"""The table of formats: what the command and its guide list."""

from __future__ import annotations

import importlib
from pathlib import Path

from opwright.judged.formats import FORMATS

_GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "judge.md"


def test_the_command_and_its_guide_list_every_format() -> None:
    command = importlib.import_module("opwright.cli.judge")
    assert command.FORMATS.split(", ") == list(FORMATS)
    listed = [line.split("`")[1] for line in _GUIDE.read_text().splitlines() if line.startswith("| `")]
    assert sorted(listed) == sorted(["--format", *FORMATS])
