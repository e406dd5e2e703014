"""Tables of the fastest kernels by size, stored in the cache folder and read when an operator first chooses a kernel.

A table is valid for the kernels, the machine and the versions that it was measured with: the file's name is a digest of
these, so that an edited kernel does not use an old table. ``timing/tune.py`` makes them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from opwright.contract.dtypes import short
from opwright.contract.fingerprint import digest
from opwright.machine import Machine
from opwright.results import Crossover, SizeRange
from opwright.results.json_form import from_json, to_json

__all__ = ["Tuned", "clear", "count_elements", "device_name", "dtype_key", "load", "store"]

_SCHEMA = "opwright.tuned/2"


@dataclass(frozen=True)
class Tuned:
    """An operator's tables by device name and dtype. ``stale``: all tables are for other kernels or machines."""

    machine: Machine | None = None
    tables: dict[tuple[str, str], Crossover] = field(default_factory=dict)
    stale: bool = False

    def find(self, arguments: Sequence[Any]) -> tuple[Crossover, SizeRange] | None:
        """The table and the size range of these arguments (in signature order)."""
        if not self.tables or self.machine is None:
            return None
        tensors = _tensors(arguments)
        table = self.tables.get((device_name(self.machine, tensors[0].device), dtype_key(arguments)))
        if table is None:
            return None
        # Under torch.compile the count may be symbolic: each comparison then becomes a guard.
        elements = count_elements(arguments)
        return table, next(i for i in table.ranges if i.below is None or elements < i.below)


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
    return Tuned(machine, {(t.device_name, t.dtype): t for t in tables})


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


def clear(qualname: str, machine: Machine) -> bool:
    """Remove every table of an operator. Returns whether there was one. Raises OSError if they cannot be removed."""
    folder = _folder(qualname, machine)
    if not folder.is_dir():
        return False
    shutil.rmtree(folder)
    return True


def count_elements(arguments: Sequence[Any]) -> int:
    """The size in tables: the number of elements of all tensor arguments."""
    return sum(t.numel() for t in _tensors(arguments))


def dtype_key(arguments: Sequence[Any]) -> str:
    """The dtypes in a table's key: the floating ones, or all if there are none."""
    found = {t.dtype for t in _tensors(arguments)}
    floating = {d for d in found if d.is_floating_point or d.is_complex}
    return ",".join(sorted(short(d) for d in floating or found))


def device_name(machine: Machine, device: torch.device) -> str:
    """The name of a device, which is the same for GPUs of the same model."""
    if device.type != "cuda":
        return machine.cpu if device.type == "cpu" else device.type
    index = torch.cuda.current_device() if device.index is None else device.index
    return machine.gpus[index].name if index < len(machine.gpus) else device.type


def _tensors(arguments: Sequence[Any]) -> list[torch.Tensor]:
    listed = (a if isinstance(a, list | tuple) else (a,) for a in arguments)
    return [t for values in listed for t in values if isinstance(t, torch.Tensor)]


def _folder(qualname: str, machine: Machine) -> Path:
    return machine.cache_dir / "tuned" / f"{re.sub(r'[^A-Za-z0-9_]+', '_', qualname)}-{digest(qualname)}"


def _file_name(kernels: str, machine: Machine) -> str:
    """The name of a table's file. GPUs are not part of it, because each table names its device."""
    properties = {k: v for k, v in machine.to_json().items() if k not in ("gpus", "triton_interpret")}
    return f"{digest(kernels, machine.cpu_flags, json.dumps(properties, sort_keys=True))}.json"


def _covers_every_size(table: Crossover) -> bool:
    return bool(table.ranges) and table.ranges[-1].below is None
