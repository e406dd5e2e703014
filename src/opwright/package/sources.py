"""The user's modules: which of them an operator needs, and their names in the package."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from opwright.errors import TargetError
from opwright.package.imports import Imported, imports_of, rename_imports

__all__ = ["SHIM", "SourceModule", "UserModules", "modules_needed", "public_names", "user_modules_of"]

# The subpackage with opwright's files in a package.
SHIM = "_opwright"


@dataclass(frozen=True)
class SourceModule:
    """One of the user's modules.

    Attributes:
        name: its original name.
        shipped: its name in the package.
        file: its original file; ``path`` is the file's path below the package.
        distributions: the distributions that pip has to install for it.
    """

    name: str
    shipped: str
    file: Path
    path: str
    text: str
    distributions: frozenset[str]


@dataclass(frozen=True)
class UserModules:
    """The user's modules in the target's folder: their original names, and their names in the package.

    Attributes:
        target: the module with the operators.
        folder: the modules that may be shipped: a package's own folder, or the folder of a module.
        prefix: the dotted name of that folder's modules ("" if they are imported by their bare names).
        package: the name of the package to build.
        base: the prefix of the folder's modules below the package: ``trig`` for a package ``trig``.
    """

    target: str
    folder: Path
    prefix: str
    package: str
    base: str
    vendored: frozenset[str] = field(default_factory=frozenset)

    def name_of(self, file: Path) -> str | None:
        """The dotted name, relative to the folder, of a file; None if it is elsewhere."""
        if not file.is_relative_to(self.folder):
            return None
        parts = file.relative_to(self.folder).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def find(self, module: str) -> Path | None:
        """The file of a module by its original name, if it is one of the user's."""
        relative = self._relative(module)
        if relative is None:
            return None
        path = self.folder.joinpath(*relative.split(".")) if relative else self.folder
        candidates = (path / "__init__.py", path.with_suffix(".py"))
        return next((c for c in candidates if c.is_file()), None)

    def _relative(self, module: str) -> str | None:
        if not self.prefix:
            return module if module.partition(".")[0] != "opwright" else None
        if module == self.prefix:
            return ""
        return module[len(self.prefix) + 1 :] if module.startswith(f"{self.prefix}.") else None

    def shipped(self, module: str) -> str | None:
        """A module's name in the package; None if it is neither the user's nor opwright's."""
        file = self.find(module)
        if file is not None:
            relative = self._relative(module)
            return ".".join(filter(None, (self.package, self.base, relative)))
        if module == "opwright":
            return f"{self.package}.{SHIM}"
        if module.startswith("opwright."):
            if module in self.vendored:
                return f"{self.package}.{SHIM}{module.removeprefix('opwright')}"
            raise TargetError(
                f"{self.target} uses {module}, which is not shipped", fix="use the public names of opwright only"
            )
        return None


def user_modules_of(target: ModuleType, package: str, vendored: frozenset[str]) -> UserModules:
    """The modules around a target, with their names in the package."""
    assert target.__file__ is not None  # a module that defines an operator comes from a file
    file = Path(target.__file__).resolve()
    name = target.__name__
    if name == "__init__":
        raise TargetError(
            f"{file} is a package's file", fix="name the package as Python imports it, as in package.module"
        )
    if file.name == "__init__.py":
        return UserModules(name, file.parent, name, package, name.rpartition(".")[2], vendored)
    return UserModules(name, file.parent, name.rpartition(".")[0], package, "", vendored)


def modules_needed(user_modules: UserModules, files: Iterable[Path]) -> list[SourceModule]:
    """The modules of these files, and every module of the user's that they import.

    Raises:
        TargetError: they import a module that is neither the user's nor installed by pip.
    """
    found: dict[Path, SourceModule] = {}
    waiting = list(files)
    while waiting:
        file = waiting.pop(0)
        if file in found:
            continue
        relative = user_modules.name_of(file)
        if relative is None:
            raise TargetError(f"{file} is not in {user_modules.folder}", fix="move it beside the operators' module")
        name = ".".join(filter(None, (user_modules.prefix, relative)))
        text, is_package = file.read_text(), file.name == "__init__.py"
        imported = imports_of(text, name, is_package)
        distributions = set()
        for each in imported:
            local = list(_user_files(user_modules, each))
            waiting += local
            if not local:
                distributions |= _distribution(each, file)
        shipped = ".".join(filter(None, (user_modules.package, user_modules.base, relative)))
        path = "/".join([*filter(None, user_modules.base.split(".")), str(file.relative_to(user_modules.folder))])
        new_text = rename_imports(text, user_modules.shipped, file.name)
        found[file] = SourceModule(name, shipped, file, path, new_text, frozenset(distributions))
        waiting += _packages_above(user_modules, file)
    return list(found.values())


def _user_files(user_modules: UserModules, imported: Imported) -> Iterator[Path]:
    """The user's files that an import statement runs: the module's, and those of names that are modules."""
    for module in (imported.module, *(f"{imported.module}.{name}" for name in imported.names)):
        file = user_modules.find(module)
        if file is not None:
            yield file


def _packages_above(user_modules: UserModules, file: Path) -> Iterator[Path]:
    """The ``__init__.py`` files of the packages that contain a module, inside the user's folder."""
    folder = file.parent
    while folder != user_modules.folder and folder.is_relative_to(user_modules.folder):
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py"
        folder = folder.parent
    if user_modules.base and (user_modules.folder / "__init__.py").is_file():
        yield user_modules.folder / "__init__.py"


def _distribution(imported: Imported, file: Path) -> set[str]:
    """The distribution of a module; empty for Python's own, for opwright, and for an optional one."""
    top = imported.module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("opwright", "__future__") or imported.optional:
        return set()
    listed = _installed().get(top)
    if listed:
        return {min(listed)}
    if top == "triton":  # its kernels can be shipped from a machine without it
        return {"triton"}
    raise TargetError(
        f"{file.name}:{imported.line} imports {imported.module}, which is neither beside it nor installed by pip",
        fix="move it into the folder of the operators' module, or make it a distribution that pip can install",
    )


@functools.cache
def _installed() -> Mapping[str, list[str]]:
    """The distributions of each top-level module."""
    return importlib.metadata.packages_distributions()


def public_names(text: str) -> list[str] | None:
    """A module's ``__all__``, if it is a literal list."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            try:
                return list(ast.literal_eval(node.value))
            except ValueError:
                return None
    return None
