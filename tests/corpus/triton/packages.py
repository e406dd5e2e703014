"""Imports single modules of a library whose packages import much more than these need."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from pathlib import Path
from typing import Any

__all__ = ["import_alone", "stand_in"]


def import_alone(name: str) -> Any:
    """A module, without running the ``__init__`` of the packages that it is in."""
    parts = name.split(".")
    root = next(Path(entry) / parts[0] for entry in sys.path if (Path(entry) / parts[0]).is_dir())
    for depth in range(1, len(parts)):
        package = ".".join(parts[:depth])
        if package not in sys.modules:
            made = types.ModuleType(package)
            made.__path__ = [str(root.joinpath(*parts[1:depth]))]
            sys.modules[package] = made
    return importlib.import_module(name)


def stand_in(name: str, **names: Any) -> None:
    """A module of these names, in place of one that needs a GPU, or packages that are not there."""
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(made).update(names)
    sys.modules[name] = made
