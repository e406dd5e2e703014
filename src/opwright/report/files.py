"""Writing and reading the JSON records. What is written is what the tables show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opwright.errors import OpwrightError

__all__ = ["read_json", "read_text", "refuse_unwritable", "write_json", "write_text"]


def write_json(record: dict[str, Any], file: Path) -> None:
    """Write a record, whole or not at all. Raises OpwrightError if the file cannot be written."""
    write_text(json.dumps(record, indent=2) + "\n", file)


def write_text(text: str, file: Path) -> None:
    """Write a file, whole or not at all. Raises OpwrightError if it cannot be written."""
    partial = file.with_name(file.name + ".partial")
    try:
        partial.write_text(text)
        partial.replace(file)
    except OSError as error:
        raise _unwritable(file, error) from None


def refuse_unwritable(*files: Path | None) -> None:
    """Raise OpwrightError now if one of these could not be written later: minutes of work would be lost."""
    for file in filter(None, files):
        if file.is_dir():
            raise OpwrightError(f"cannot write {file}: it is a folder", fix="name a file")
        partial = file.with_name(file.name + ".partial")
        try:
            partial.touch()
            partial.unlink()
        except OSError as error:
            raise _unwritable(file, error) from None


def _unwritable(file: Path, error: OSError) -> OpwrightError:
    return OpwrightError(f"cannot write {file}: {error.strerror}", fix="choose a folder that exists and can be written")


def read_text(file: Path) -> str:
    """Read what ``write_text`` wrote. Raises OpwrightError if it is not there, or not text."""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OpwrightError(f"cannot read {file}: {error}", fix="make it with -o") from None


def read_json(file: Path, schemas: Sequence[str]) -> dict[str, Any]:
    """Read a record. Raises OpwrightError if it is not there, not JSON, or of none of these schemas."""
    try:
        record = json.loads(file.read_text())
    except OSError as error:
        raise OpwrightError(f"cannot read {file}: {error.strerror}", fix="make it with --json") from None
    except ValueError:
        raise OpwrightError(f"{file} is not JSON", fix="make it with --json") from None
    found = record.get("schema") if isinstance(record, dict) else None
    if found not in schemas:
        raise OpwrightError(
            f"{file} holds {found!r}, not {' or '.join(schemas)}", fix="make it with this version's --json"
        )
    assert isinstance(record, dict)  # or it would have no schema
    return record
