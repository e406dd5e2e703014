"""What is known of each kernel from the last save: its version, its verdict, its findings and its times."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwright.machine import cache_dir

__all__ = ["Known", "read_state", "state_file", "write_state"]

_VERSION = 1


@dataclass(frozen=True)
class Known:
    """A kernel as it was checked last.

    Attributes:
        version: a digest of its sources and of its reference.
        status: its verdict.
        seconds: how long its first checks took.
        findings: their records.
        device: where it was checked.
        times: microseconds by case.
    """

    version: str
    status: str
    seconds: float = 0.0
    device: str = "cpu"
    findings: tuple[dict[str, Any], ...] = ()
    times: dict[str, float] = field(default_factory=dict)


def state_file(targets: Sequence[str]) -> Path:
    """The file for some targets, in the cache folder."""
    named = [os.path.realpath(t.partition(":")[0]) + t.partition(":")[1] + t.partition(":")[2] for t in targets]
    return cache_dir() / "watched" / f"{hashlib.sha256(repr(named).encode()).hexdigest()[:16]}.json"


def read_state(file: Path) -> dict[str, Known]:
    """The kernels by name; none if there is no file, or one of another version."""
    try:
        record = json.loads(file.read_text())
        if record["version"] != _VERSION:
            return {}
        return {
            name: Known(**{**known, "findings": tuple(known["findings"])}) for name, known in record["kernels"].items()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write_state(file: Path, kernels: dict[str, Known]) -> None:
    """Replace the file, so that one that is read at the same time is whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"version": _VERSION, "kernels": {n: dataclasses.asdict(k) for n, k in kernels.items()}})
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(file)
