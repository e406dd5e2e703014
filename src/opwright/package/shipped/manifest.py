"""The manifest of a package: its operators and their kernels."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.errors import ContractError

__all__ = ["Manifest", "ShippedOperator", "read_manifest"]

FORMAT = "opwright.package/1"


@dataclass(frozen=True)
class ShippedOperator:
    """One operator: the schema that its native kernels were built for, and its kernels by name."""

    schema: str
    kernels: Mapping[str, Mapping[str, Any]]


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


@functools.cache
def read_manifest() -> Manifest:
    """The manifest of the package that this file was copied into."""
    package = __name__.partition(".")[0]
    folder = Path(next(iter(sys.modules[package].__path__)))
    record = json.loads((folder / "manifest.json").read_text())
    if record["format"] != FORMAT:
        raise ContractError(f"{package}: its manifest is {record['format']!r}, not {FORMAT!r}", fix="install it again")
    operators = {name: ShippedOperator(o["schema"], o["kernels"]) for name, o in record["operators"].items()}
    return Manifest(package, folder, frozenset(record["languages"]), operators)
