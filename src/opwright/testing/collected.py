"""``collect``: operators whose checks become tests without a test function."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwright.errors import CheckError

__all__ = ["Collected", "collect", "collected_in"]


@dataclass(frozen=True)
class Collected:
    """One call of ``collect``: the targets, and the options of ``cases``."""

    targets: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


_by_file: dict[Path, list[Collected]] = {}


def collect(*targets: Any, **options: Any) -> None:
    """Make the checks of some operators tests of the folder whose ``conftest.py`` has this line.

    Args:
        targets: operators, or their names: a file, ``module``, ``module:op``. They are imported when pytest collects.
        options: those of ``cases``.

    Raises:
        CheckError: it is called elsewhere.
    """
    frame = inspect.currentframe()
    caller = frame.f_back if frame is not None else None
    file = Path(caller.f_code.co_filename if caller is not None else "").resolve()
    if file.name != "conftest.py":
        raise CheckError(
            f"ow.testing.collect must be called in a conftest.py, got {file.name}", fix="move the line there"
        )
    known = _by_file.setdefault(file, [])
    if not any(one.targets == targets and one.options == options for one in known):
        known.append(Collected(targets, options))


def collected_in(file: Path) -> list[Collected]:
    """The calls in a file."""
    return _by_file.get(file.resolve(), [])
