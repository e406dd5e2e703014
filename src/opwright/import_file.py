"""Imports a Python file by its path."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["import_file"]


def import_file(path: Path, name: str) -> ModuleType:
    """Run a file as the module ``name``, replacing an earlier module of that name. If the file raises, ``sys.modules``
    is as it was before.

    Raises:
        ImportError: it is not a Python file.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file", name=name, path=str(path))
    module, earlier = importlib.util.module_from_spec(spec), sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if earlier is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = earlier
        raise
    return module
