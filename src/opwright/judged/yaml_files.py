"""YAML files of tasks."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opwright.errors import TargetError

__all__ = ["read_yaml"]


def read_yaml(file: Path) -> Mapping[str, Any]:
    """The mapping in a file.

    Raises:
        TargetError: it is none, or PyYAML is missing.
    """
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise TargetError(
            f"{file.name} must be read with PyYAML, which is missing", fix="pip install 'opwright[judge]'"
        ) from None
    try:
        found = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        message = " ".join(str(error).split())
        raise TargetError(f"{file.name} must be YAML, got {message}", fix="correct the file") from None
    if not isinstance(found, dict):
        raise TargetError(f"{file.name} must be a mapping, got {type(found).__name__}", fix="correct the file")
    return found
