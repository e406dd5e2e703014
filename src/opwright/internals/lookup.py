"""Finds the names of ``names.INTERNALS``, each once, and tests that they behave as expected."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opwright.internals.names import INTERNALS, Internal

__all__ = ["Problem", "all_found", "find", "name_of", "problems", "replace"]

_ROWS = {row.key: row for row in INTERNALS}
_MISSING = object()
# Replacements of names, for tests and for finding the cause of a problem. The
# environment variable lists keys of rows, separated by commas, that count as missing.
_replaced: dict[str, Any] = dict.fromkeys(
    filter(None, os.environ.get("OPWRIGHT_WITHOUT_INTERNALS", "").split(",")), _MISSING
)
_problems: dict[str, Problem] = {}


@dataclass(frozen=True)
class Problem:
    """A private name that is missing, or behaves differently."""

    internal: Internal
    what: str

    def __str__(self) -> str:
        return f"{self.internal.name} {self.what}: {self.internal.without}"


def find(key: str, behaves: Callable[[Any], bool] | None = None) -> Any | None:
    """The object with a private name; None if it is missing or fails its probe.

    Args:
        key: the key of a row in the table.
        behaves: the probe: whether the object behaves as opwright expects. An exception counts as False.
    """
    found = _look_up(key)
    if found is _MISSING or key in _problems:  # an earlier probe may have failed
        return None
    try:
        if behaves is None or behaves(found):
            return found
        what = "behaves differently"
    except Exception as error:  # a changed function may raise anything
        what = f"behaves differently ({type(error).__name__}: {error})"
    _problems[key] = Problem(_ROWS[key], what)
    return None


def name_of(key: str) -> str:
    """The attribute name of a private name in its module; the object's ``__name__`` may differ."""
    return _ROWS[key].name.rpartition(".")[2]


@functools.cache
def _look_up(key: str) -> Any:
    row = _ROWS[key]
    found = _replaced[key] if key in _replaced else _resolve(row.name)
    if found is _MISSING and (key in _replaced or not _is_not_installed(row.name)):
        _problems[key] = Problem(row, "is missing")
    return found


def _resolve(name: str) -> Any:
    """An object by its dotted name: modules are imported, the rest are attributes."""
    first, *rest = name.split(".")
    try:
        found: Any = importlib.import_module(first)
    except ImportError:
        return _MISSING
    path = first
    for part in rest:
        path = f"{path}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(path)
            except ImportError:
                return _MISSING
    return found


def _is_not_installed(name: str) -> bool:
    """Whether a name belongs to Triton, CUDA or ``torch.distributed`` and these are not part of this installation."""
    try:
        importlib.import_module(name.partition(".")[0])
    except ImportError:
        return True
    import torch

    return ("cuda" in name and torch.version.cuda is None) or (
        ".distributed." in name and not torch.distributed.is_available()
    )


def all_found(*found: Any) -> bool:
    """Whether none of these results of ``find`` is None."""
    return all(one is not None for one in found)


def problems() -> list[Problem]:
    """Every name of the table that is missing here, or has failed its probe."""
    for key in _ROWS:
        _look_up(key)
    return [_problems[key] for key in _ROWS if key in _problems]


def replace(key: str, replacement: Any) -> None:
    """Replace a name, for tests, before any other part of opwright is imported."""
    _replaced[key] = replacement
