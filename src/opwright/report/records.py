"""Writing and reading the JSON records. What is written is what the tables show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from opwright.errors import OpwrightError

__all__ = ["write_json"]


def write_json(record: dict[str, Any], file: Path) -> None:
    """Write a record, whole or not at all. Raises OpwrightError if the file cannot be written."""
    partial = file.with_name(file.name + ".partial")
    try:
        partial.write_text(json.dumps(record, indent=2) + "\n")
        partial.replace(file)
    except OSError as error:
        raise OpwrightError(
            f"cannot write {file}: {error.strerror}", fix="choose a folder that exists and can be written"
        ) from None
