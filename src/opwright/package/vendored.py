"""The part of opwright that goes into a package: what ``shipped/names.py`` imports, and what that imports."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from pathlib import Path

import opwright.errors
from opwright.package.imports import imports_of, rename_imports
from opwright.package.sources import SHIM

__all__ = ["requirements", "vendored_files", "vendored_modules"]

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
            if each.module == "opwright":  # its own file imports everything for opwright's users
                waiting += [f"opwright.{name}" for name in each.names]
            elif each.module.startswith("opwright."):
                waiting += [each.module, *(f"{each.module}.{name}" for name in each.names)]
    # The folders' own files only name what is below them, or import it for opwright's own users.
    return {module: file for module, file in found.items() if file.name != "__init__.py"}


def _file_of(module: str) -> Path | None:
    place = _ROOT.joinpath(*module.split(".")[1:])
    return next((f for f in (place.with_suffix(".py"), place / "__init__.py") if f.is_file()), None)


def vendored_files(package: str) -> dict[str, str]:
    """What to write, by path below the package."""
    prefix, version = f"{package}.{SHIM}", _version()

    def rename(module: str) -> str | None:
        return prefix + module.removeprefix("opwright") if module.partition(".")[0] == "opwright" else None

    files = {}
    for module, file in vendored_modules().items():
        path = Path(SHIM, *module.split(".")[1:]).with_suffix(".py")
        note = f"# From opwright {version} (Apache-2.0), as it is but for the names of modules.\n"
        files[str(path)] = note + rename_imports(file.read_text(), rename, file.name)
        for folder in [*path.parents][:-2]:
            files[str(folder / "__init__.py")] = ""
    files[f"{SHIM}/__init__.py"] = (
        f'"""What {package} needs of opwright {version}: operators, without the tools that make and check them."""\n\n'
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
    """What the vendored files need, as opwright itself asks for it."""
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
    ]  # from a folder that was not installed


def _version() -> str:
    try:
        return importlib.metadata.version("opwright")
    except importlib.metadata.PackageNotFoundError:
        return "from a folder"


def _licence() -> str | None:
    """opwright's own licence, which goes with its files: from its checkout, or from what pip installed."""
    beside = _ROOT.parent.parent / "LICENSE"
    if beside.is_file():
        return beside.read_text()
    try:
        files = importlib.metadata.files("opwright") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = next((f for f in files if f.name == "LICENSE"), None)
    return found.read_text() if found is not None else None
