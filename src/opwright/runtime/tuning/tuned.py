"""Tables of the fastest kernels by size, stored in the cache folder and read when an operator first chooses a kernel.

A table is valid for the kernels, the machine and the versions that it was measured with: the file's name is a digest of
these, so that an edited kernel does not use an old table. ``timing/tune.py`` makes them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwright.contract.fingerprint import digest
from opwright.errors import CheckError
from opwright.machine import Machine
from opwright.results import Crossover, SizeRange
from opwright.results.json_form import from_json, to_json
from opwright.runtime.tuning.size_tables import find_range, key_of

__all__ = [
    "Exported", "Tuned", "clear", "load", "read_exported", "store", "with_exported", "write_exported",
]  # fmt: skip

_SCHEMA = "opwright.tuned/2"
_EXPORT_SCHEMA = "opwright.tuning/1"


@dataclass(frozen=True)
class Tuned:
    """An operator's tables by device name and dtype. ``stale``: all tables are for other kernels or machines."""

    tables: dict[tuple[str, str], Crossover] = field(default_factory=dict)
    stale: bool = False

    def find(self, arguments: Sequence[Any]) -> tuple[Crossover, SizeRange] | None:
        """The table and the size range of these arguments (in signature order)."""
        key = key_of(arguments) if self.tables else None
        table = self.tables.get(key) if key is not None else None
        return (table, find_range(table.ranges, arguments)) if table is not None else None

    @functools.cached_property
    def ranges(self) -> dict[tuple[str, str], tuple[SizeRange, ...]]:
        """The ranges of each table."""
        return {key: table.ranges for key, table in self.tables.items()}


def load(qualname: str, kernels: Callable[[], str], machine: Machine) -> Tuned:
    """An operator's tables for this machine; none if there are none, or if they cannot be read.

    Args:
        kernels: returns the digest of the operator's kernels; called only if anything was tuned.
    """
    folder = _folder(qualname, machine)
    if not folder.is_dir():
        return Tuned()
    try:
        record = json.loads((folder / _file_name(kernels(), machine)).read_text())
        tables = from_json(list[Crossover], record["tables"]) if record["schema"] == _SCHEMA else []
        if not all(map(_covers_every_size, tables)):
            return Tuned()
    except FileNotFoundError:  # no such table, or no such kernel any more
        return Tuned(stale=any(folder.glob("*.json")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # damaged, or of another kind: ignored
        return Tuned()
    return Tuned({(t.device_name, t.dtype): t for t in tables})


def store(qualname: str, kernels: str, machine: Machine, found: Iterable[Crossover]) -> Path:
    """Store tables, beside those for other devices and dtypes. Raises OSError if the cache folder cannot be written."""
    tables = {**load(qualname, lambda: kernels, machine).tables, **{(t.device_name, t.dtype): t for t in found}}
    file = _folder(qualname, machine) / _file_name(kernels, machine)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}.partial")
    record = {"schema": _SCHEMA, "op": qualname, "tables": to_json(list(tables.values()))}
    partial.write_text(json.dumps(record, indent=1))
    partial.replace(file)
    return file


@dataclass(frozen=True)
class Exported:
    """Tables of one operator in a file that can be committed, for all types of devices on which it was measured.

    Attributes:
        kernels: the digest of the kernels that were measured; tables of others are not used.
        versions: those of the machine that has measured last, for the reader.
    """

    op: str
    kernels: str
    tables: tuple[Crossover, ...]
    versions: dict[str, str] = field(default_factory=dict)


def read_exported(file: Path) -> tuple[Exported, ...]:
    """The tables of a file that ``opwright tune --export`` has written.

    Raises:
        CheckError: there is no such file, or it is something else.
    """
    try:
        record = json.loads(file.read_text())
        if record["schema"] != _EXPORT_SCHEMA:
            raise ValueError(f"its schema is {record['schema']!r}, not {_EXPORT_SCHEMA!r}")
        found = from_json(tuple[Exported, ...], record["operators"])
    except OSError as error:
        raise CheckError(f"cannot read {file}: {error.strerror}", fix="write it with opwright tune --export") from None
    except (ValueError, LookupError, TypeError) as error:
        raise CheckError(
            f"{file} holds no tables of opwright tune --export: {error}", fix="write it with opwright tune --export"
        ) from None
    if not all(_covers_every_size(table) for one in found for table in one.tables):
        raise CheckError(f"{file}: a table does not cover every size", fix="write it with opwright tune --export")
    return found


def write_exported(file: Path, added: Iterable[Exported]) -> None:
    """Add tables to a file, which may be there: those of the same kernels and other devices and dtypes stay.

    Raises:
        CheckError: the file is something else, or cannot be written.
    """
    merged = {one.op: one for one in (read_exported(file) if file.exists() else ())}
    for new in added:
        old = merged.get(new.op)
        kept = old.tables if old is not None and old.kernels == new.kernels else ()
        tables = {(t.device_name, t.dtype): t for t in (*kept, *new.tables)}
        merged[new.op] = dataclasses.replace(new, tables=tuple(tables[key] for key in sorted(tables)))
    record = {"schema": _EXPORT_SCHEMA, "operators": to_json([merged[name] for name in sorted(merged)])}
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps(record, indent=1) + "\n")
        partial.replace(file)
    except OSError as error:
        raise CheckError(f"cannot write {file}: {error.strerror}", fix="choose a folder that can be written") from None


def with_exported(own: Tuned, exported: Iterable[Exported], kernels: Callable[[], str]) -> Tuned:
    """An operator's tables with those of files, which count where this machine has measured nothing itself."""
    found = list(exported)
    if not found:
        return own
    fitting = [one for one in found if one.kernels == kernels()]
    tables = {(t.device_name, t.dtype): t for one in fitting for t in one.tables}
    if not tables and not own.tables:
        return dataclasses.replace(own, stale=True)
    return Tuned({**tables, **own.tables}, own.stale)


def clear(qualname: str, machine: Machine) -> bool:
    """Remove every table of an operator. Returns whether there was one. Raises OSError if they cannot be removed."""
    folder = _folder(qualname, machine)
    if not folder.is_dir():
        return False
    shutil.rmtree(folder)
    return True


def _folder(qualname: str, machine: Machine) -> Path:
    return machine.cache_dir / "tuned" / f"{re.sub(r'[^A-Za-z0-9_]+', '_', qualname)}-{digest(qualname)}"


def _file_name(kernels: str, machine: Machine) -> str:
    """The name of a table's file. GPUs are not part of it, because each table names its device."""
    properties = {k: v for k, v in machine.to_json().items() if k != "gpus"}
    return f"{digest(kernels, machine.cpu_flags, json.dumps(properties, sort_keys=True))}.json"


def _covers_every_size(table: Crossover) -> bool:
    return bool(table.ranges) and table.ranges[-1].below is None
