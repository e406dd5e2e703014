"""The part of opwright that is copied into a package: the modules that ``shipped/names.py`` imports, transitively."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from pathlib import Path

import opwright.errors
from opwright.package.imports import imports_of, rename_imports
from opwright.package.sources import SHIM

__all__ = ["opwright_version", "requirements", "vendored_files", "vendored_modules"]

_ROOT = Path(opwright.errors.__file__).parent
_START = "opwright.package.shipped.names"


@functools.cache
def vendored_modules() -> dict[str, Path]:
    """The modules by name, with their files."""
    found: dict[str, Path] = {}
    waiting = [_START]
    while waiting:
        module = waiting.pop(0)
        file = _file_of(module)
        if file is None or module in found:
            continue
        found[module] = file
        for each in imports_of(file.read_text(), module, file.name == "__init__.py"):
            if each.module == "opwright":  # opwright/__init__.py is not copied, only the imported submodules
                waiting += [f"opwright.{name}" for name in each.names]
            elif each.module.startswith("opwright."):
                waiting += [each.module, *(f"{each.module}.{name}" for name in each.names)]
    # __init__ files contain only re-exports, which a package does not need.
    return {module: file for module, file in found.items() if file.name != "__init__.py"}


def _file_of(module: str) -> Path | None:
    path = _ROOT.joinpath(*module.split(".")[1:])
    return next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()), None)


def vendored_files(package: str) -> dict[str, str]:
    """The texts of the copied files, by path below the package."""
    prefix, version = f"{package}.{SHIM}", opwright_version()

    def rename(module: str) -> str | None:
        return prefix + module.removeprefix("opwright") if module.partition(".")[0] == "opwright" else None

    files = {}
    for module, file in vendored_modules().items():
        path = Path(SHIM, *module.split(".")[1:]).with_suffix(".py")
        note = f"# From opwright {version} (Apache-2.0), unchanged except for the names of modules.\n"
        files[str(path)] = note + rename_imports(file.read_text(), rename, file.name)
        for folder in [*path.parents][:-2]:
            files[str(folder / "__init__.py")] = ""
    files[f"{SHIM}/__init__.py"] = (
        f'"""The part of opwright {version} that {package} needs: '
        'operators, without the tools that build and check them."""\n\n'
        f"from {prefix}.package.shipped import names\n"
        f"from {prefix}.package.shipped.names import *  # noqa: F403\n\n"
        f'__version__ = "{version}"\n\n\n'
        "def __getattr__(name):\n    return getattr(names, name)\n"
    )
    licence = _licence()
    if licence is not None:
        files[f"{SHIM}/LICENSE"] = licence
    return files


def requirements() -> list[str]:
    """The requirements of the copied files, as in opwright's own metadata."""
    tops = {
        each.module.partition(".")[0]
        for module, file in vendored_modules().items()
        for each in imports_of(file.read_text(), module, False)
    }
    return sorted(r for r in _own_requirements() if re.split(r"[^\w-]", r)[0].replace("-", "_") in tops)


def _own_requirements() -> list[str]:
    try:
        listed = importlib.metadata.requires("opwright") or []
    except importlib.metadata.PackageNotFoundError:
        listed = []
    plain = [r for r in listed if ";" not in r]
    return plain or [
        "torch>=2.11",
        "numpy>=1.26",
        "jaxtyping>=0.3",
        "typing-extensions>=4.12",
    ]  # opwright runs from a folder without being installed


def opwright_version() -> str:
    """The version of opwright that makes the package."""
    try:
        return importlib.metadata.version("opwright")
    except importlib.metadata.PackageNotFoundError:
        return "from a folder"


def _licence() -> str | None:
    """opwright's own licence, which is copied with its files: from its checkout, or from the installed distribution."""
    beside = _ROOT.parent.parent / "LICENSE"
    if beside.is_file():
        return beside.read_text()
    try:
        files = importlib.metadata.files("opwright") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = next((f for f in files if f.name == "LICENSE"), None)
    return found.read_text() if found is not None else None
