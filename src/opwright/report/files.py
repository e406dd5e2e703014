"""Writes and reads files of records."""

from __future__ import annotations

import contextlib
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
        # A path may hold bytes that are no text.
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        partial.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()  # it would take the space of files that fit
        raise _unwritable(file, error) from None


def refuse_unwritable(*files: Path | None) -> None:
    """Raise OpwrightError now if one of these cannot be written, before minutes of work are lost."""
    for file in filter(None, files):
        if file.is_dir():
            raise OpwrightError(f"the output must be a file, got the folder {file}", fix="name a file in it")
        partial = file.with_name(file.name + ".partial")
        try:
            partial.touch()
            partial.unlink()
        except OSError as error:
            raise _unwritable(file, error) from None


def _unwritable(file: Path, error: OSError) -> OpwrightError:
    return OpwrightError(f"cannot write {file}: {error.strerror}", fix="choose a folder that exists and can be written")


def read_text(file: Path) -> str:
    """Read a text file. Raises OpwrightError if it does not exist, or is not text."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OpwrightError(f"cannot read {file}: {error}", fix="write it with -o") from None


def read_json(file: Path, schemas: Sequence[str]) -> dict[str, Any]:
    """Read a record. Raises OpwrightError if it does not exist, is not JSON, or has none of these schemas."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise OpwrightError(f"cannot read {file}: {error.strerror}", fix="write it with --json") from None
    except ValueError:
        raise OpwrightError(f"{file} must be a record in JSON, got other text", fix="write it with --json") from None
    found = record.get("schema") if isinstance(record, dict) else None
    if found not in schemas:
        raise OpwrightError(
            f"{file} must have the schema {' or '.join(schemas)}, got {found!r}",
            fix="write it with this version's --json",
        )
    assert isinstance(record, dict)  # only a dict has a schema
    return record
