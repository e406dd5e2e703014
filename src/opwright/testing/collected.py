"""``collect``: operators whose checks become tests without a test function."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from opwright.errors import CheckError
from opwright.testing.hooks import HOOKS
from opwright.testing.registry import Collected, add

__all__ = ["collect"]


def collect(*targets: Any, **options: Any) -> None:
    """Make the checks of some operators tests of the folder whose ``conftest.py`` has this line.

    The file gets two hooks of pytest: ``pytest_collect_file`` and ``pytest_collection_finish``.

    Args:
        targets: operators, or their names: a file, ``module``, ``module:op``. They are imported when pytest collects.
        options: those of ``cases``.

    Raises:
        CheckError: it is called elsewhere, or the file has such a hook of its own.
    """
    frame = inspect.currentframe()
    names = frame.f_back.f_globals if frame is not None and frame.f_back is not None else {}
    file = Path(names.get("__file__", ""))
    if file.name != "conftest.py":
        raise CheckError(
            f"ow.testing.collect must be called in a conftest.py, got {file.name}", fix="move the line there"
        )
    for name, hook in HOOKS.items():
        if names.setdefault(name, hook) is not hook:
            raise CheckError(
                f"{file}: {name} must be left to ow.testing.collect", fix="move yours to another conftest.py"
            )
    add(file, Collected(targets, options))
