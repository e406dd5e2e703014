"""Imports of files that import each other by name, such as ``utils``, which other tasks have too."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

__all__ = ["imported", "own_modules"]


def imported(folder: Path, file: Path) -> Any:
    """The module of a submission. Without a GPU, it runs as it is written: ``torch.compile`` is left out."""
    with own_modules(folder), _without_compile():
        sys.path.insert(0, str(file.parent))
        try:
            return importlib.import_module(file.stem)
        finally:
            sys.path.remove(str(file.parent))


@contextlib.contextmanager
def own_modules(folder: Path) -> Iterator[None]:
    """A block in which ``import utils`` is the task's file, whatever other tasks have imported."""
    names = {file.stem for file in folder.rglob("*.py")}
    before = {name: sys.modules.pop(name) for name in names & sys.modules.keys()}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules |= before


@contextlib.contextmanager
def _without_compile() -> Iterator[None]:
    compiled = torch.compile
    if not torch.cuda.is_available():
        torch.compile = lambda function=None, **options: function if function is not None else (lambda f: f)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = compiled
