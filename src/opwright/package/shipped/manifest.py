"""The manifest of a package: its operators and their kernels."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from opwright.errors import ContractError

__all__ = ["Manifest", "ShippedOperator", "read_manifest"]

FORMAT = "opwright.package/2"


class FastestBelow(NamedTuple):
    """The fastest kernel below a number of elements (None: of all others)."""

    below: int | None
    kernel: str


@dataclass(frozen=True)
class ShippedOperator:
    """One operator: the schema that its native kernels were built for, and its kernels by name.

    Attributes:
        tuning: the sizes for which each kernel is the fastest, by device and dtypes.
    """

    schema: str
    kernels: Mapping[str, Mapping[str, Any]]
    tuning: Mapping[tuple[str, str], tuple[FastestBelow, ...]]


@dataclass(frozen=True)
class Manifest:
    """The package's name and folder, and its operators."""

    package: str
    folder: Path
    languages: frozenset[str]
    operators: Mapping[str, ShippedOperator]

    def operator(self, qualname: str, schema: str) -> ShippedOperator:
        """The record of an operator.

        Raises:
            ContractError: it was built for another schema, or is new: the package's files were edited.
        """
        found = self.operators.get(qualname)
        if found is None or found.schema != schema:
            was = "it did not exist" if found is None else f"its schema was {found.schema}, and is {schema} now"
            raise ContractError(
                f"{qualname}: when {self.package} was built, {was}",
                fix="build the package again, with opwright package",
            )
        return found


def _tables(listed: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], tuple[FastestBelow, ...]]:
    return {(t["device"], t["dtype"]): tuple(FastestBelow(**each) for each in t["ranges"]) for t in listed}


@functools.cache
def read_manifest() -> Manifest:
    """The manifest of the package that this file was copied into."""
    package = __name__.partition(".")[0]
    folder = Path(next(iter(sys.modules[package].__path__)))
    record = json.loads((folder / "manifest.json").read_text())
    if record["format"] != FORMAT:
        raise ContractError(f"{package}: its manifest is {record['format']!r}, not {FORMAT!r}", fix="install it again")
    operators = {
        name: ShippedOperator(o["schema"], o["kernels"], _tables(o["tuning"]))
        for name, o in record["operators"].items()
    }
    return Manifest(package, folder, frozenset(record["languages"]), operators)
