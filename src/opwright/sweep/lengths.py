"""How long items took before, in a file of the cache folder: a later sweep gives the longest out first."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Lengths"]

_NAME = "seconds-of-units.json"
# The file is no archive: the oldest are forgotten.
_MOST = 20_000


class Lengths:
    """The seconds of parts of items, by the items' names. A file that cannot be read or written is none."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / _NAME

    def read(self) -> dict[str, dict[str, float]]:
        """What is known."""
        try:
            known = json.loads(self._file.read_text())
            return {str(name): _numbers(parts) for name, parts in known.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def add(self, seconds: Mapping[str, Mapping[str, float]]) -> None:
        """Note some items; those noted before are replaced."""
        known = self.read()
        for name, parts in seconds.items():
            known.pop(name, None)  # the newest are last
            known[name] = {part: round(s, 2) for part, s in parts.items()}
        newest = dict(list(known.items())[-_MOST:])
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            descriptor, partial = tempfile.mkstemp(dir=self._file.parent, prefix=_NAME)
            with os.fdopen(descriptor, "w") as file:
                json.dump(newest, file)
            os.replace(partial, self._file)


def _numbers(parts: Any) -> dict[str, float]:
    return {str(part): float(seconds) for part, seconds in parts.items()}
