"""Which files a port rewrites: a source, and those of the user's headers that use ATen; and where the results go."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opwright.backends.simulation import ParsedSource, find_header, parsed
from opwright.errors import TargetError

__all__ = ["MARK", "OPERATORS_MARK", "Unit", "place", "units"]

MARK = "// Written by opwright port from "
OPERATORS_MARK = "// Written by opwright port: operators of ATen that "
_USES_ATEN = re.compile(r"\b(?:at|torch|c10)\s*::|\bAT_(?:DISPATCH_\w+|ERROR|ASSERTM?)\b|\bTORCH_(?:CHECK|INTERNAL)\w*")
_INCLUDES_ATEN = re.compile(r"(?:ATen|torch|c10|THC|TH)/")


@dataclass(frozen=True)
class Unit:
    """A file to rewrite, and the headers that it includes among those, by the name in its include."""

    file: Path
    text: str
    headers: dict[str, Path]


def units(source: Path, folders: Sequence[Path]) -> list[Unit]:
    """The files to rewrite, each after those that it includes; the source is the last."""
    found: dict[Path, Unit | None] = {}
    _visit(source.resolve(), folders, found, is_source=True)
    return [unit for unit in found.values() if unit is not None]


def _visit(file: Path, folders: Sequence[Path], found: dict[Path, Unit | None], *, is_source: bool = False) -> bool:
    """Add a file and what it includes to ``found``; whether it is to be rewritten."""
    if file in found:
        return found[file] is not None
    found[file] = None  # while its headers are read, one that includes it again ends here
    source = parsed(file.read_text(errors="replace"))
    headers = {
        include.name: header
        for include in source.includes
        if (header := find_header(include.name, file, folders)) is not None and _visit(header, folders, found)
    }
    uses = is_source or bool(headers) or _uses_aten(source)
    del found[file]
    found[file] = Unit(file, source.text, headers) if uses else None
    return uses


def _uses_aten(source: ParsedSource) -> bool:
    includes = any(_INCLUDES_ATEN.match(include.name) for include in source.includes)
    return includes or _USES_ATEN.search(source.code) is not None


def place(file: Path, suffix: str = "") -> Path:
    """The new file beside an original.

    Raises:
        TargetError: there is a file that ``opwright port`` has not written.
    """
    made = file.with_name(f"{file.stem}.stable{suffix or file.suffix}")
    if made.exists() and not made.read_text(errors="replace").startswith((MARK, OPERATORS_MARK)):
        raise TargetError(f"{made} exists, and opwright has not written it", fix="move it away")
    return made
