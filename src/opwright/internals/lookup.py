"""Finding the names of ``names.INTERNALS``: each once, each by the behaviour that is relied on."""

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
# What is found in the place of names: for tests, and to tell whether one of them is the cause of something. The
# environment variable has keys of rows, with commas between them, that are taken for missing.
_replaced: dict[str, Any] = dict.fromkeys(
    filter(None, os.environ.get("OPWRIGHT_WITHOUT_INTERNALS", "").split(",")), _MISSING
)
_problems: dict[str, Problem] = {}


@dataclass(frozen=True)
class Problem:
    """A private name that is not there, or does not do what it did."""

    internal: Internal
    what: str

    def __str__(self) -> str:
        return f"{self.internal.name} {self.what}: {self.internal.without}"


def find(key: str, behaves: Callable[[Any], bool] | None = None) -> Any | None:
    """What a private name stands for; None where it is missing, or fails its probe.

    Args:
        key: of a row in the table.
        behaves: tells whether what was found does what opwright relies on. It may raise, which means no.
    """
    found = _look_up(key)
    if found is _MISSING or key in _problems:  # for whoever asked first, and for all others
        return None
    try:
        if behaves is None or behaves(found):
            return found
        what = "is not what it was"
    except Exception as error:  # a name that changed its reference may raise anything
        what = f"is not what it was ({type(error).__name__}: {error})"
    _problems[key] = Problem(_ROWS[key], what)
    return None


def name_of(key: str) -> str:
    """The attribute under which its module has a private name; what is found there may call itself otherwise."""
    return _ROWS[key].name.rpartition(".")[2]


@functools.cache
def _look_up(key: str) -> Any:
    row = _ROWS[key]
    found = _replaced[key] if key in _replaced else _resolve(row.name)
    if found is _MISSING and (key in _replaced or not _is_part_of_what_is_not_installed(row.name)):
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


def _is_part_of_what_is_not_installed(name: str) -> bool:
    """Triton may be absent, and parts of torch are built for CUDA or with ``torch.distributed`` only."""
    try:
        importlib.import_module(name.partition(".")[0])
    except ImportError:
        return True
    import torch

    return ("cuda" in name and torch.version.cuda is None) or (
        ".distributed." in name and not torch.distributed.is_available()
    )


def all_found(*found: Any) -> bool:
    """Whether none of some results of ``find`` is None."""
    return all(one is not None for one in found)


def problems() -> list[Problem]:
    """Every name of the table that is missing here, or failed its probe so far."""
    for key in _ROWS:
        _look_up(key)
    return [_problems[key] for key in _ROWS if key in _problems]


def replace(key: str, stand_in: Any) -> None:
    """Find something else under a name: for tests, before anything else of opwright is imported."""
    _replaced[key] = stand_in
