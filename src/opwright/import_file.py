"""Imports a Python file by its path."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

__all__ = ["import_file"]


class _TextLoader(SourceFileLoader):
    """Compiles the text of a file each time. Bytecode beside it may be of another text: Python compares only the time
    to the second, and the size."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def import_file(path: Path, name: str) -> ModuleType:
    """Run a file as the module ``name``, replacing an earlier module of that name. If the file raises, ``sys.modules``
    is as it was before.

    Raises:
        ImportError: it is not a Python file.
    """
    loader = _TextLoader(name, str(path)) if path.suffix == ".py" else None
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
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
