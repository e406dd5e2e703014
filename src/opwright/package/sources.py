"""The author's modules: which ones an operator needs, and what they are called in the package."""

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

__all__ = ["SHIM", "Author", "SourceModule", "author_of", "modules_needed", "public_names"]

# Where a package keeps what it needs of opwright.
SHIM = "_opwright"


@dataclass(frozen=True)
class SourceModule:
    """One of the author's modules.

    Attributes:
        name: as it is called where it is written.
        shipped: as it is called in the package.
        file: where it is written; ``path`` where it goes, below the package.
        distributions: what pip has to install for it.
    """

    name: str
    shipped: str
    file: Path
    path: str
    text: str
    distributions: frozenset[str]


@dataclass(frozen=True)
class Author:
    """The author's modules around the target: those in its folder, by the names that they have there and get.

    Attributes:
        target: the module with the operators.
        folder: what may be shipped; a package's own folder, or the one that a module stands in.
        prefix: the dotted name of that folder's modules ("" where they are imported by their bare names).
        package: what is being made.
        base: where the folder's modules go, below the package: ``trig.`` for a package ``trig``.
    """

    target: str
    folder: Path
    prefix: str
    package: str
    base: str
    vendored: frozenset[str] = field(default_factory=frozenset)

    def name_of(self, file: Path) -> str | None:
        """The dotted name, relative to the folder, of a file; None if it stands elsewhere."""
        if not file.is_relative_to(self.folder):
            return None
        parts = file.relative_to(self.folder).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def find(self, module: str) -> Path | None:
        """The file of a module by its written name, if it is one of the author's."""
        relative = self._relative(module)
        if relative is None:
            return None
        place = self.folder.joinpath(*relative.split(".")) if relative else self.folder
        candidates = (place / "__init__.py", place.with_suffix(".py"))
        return next((c for c in candidates if c.is_file()), None)

    def _relative(self, module: str) -> str | None:
        if not self.prefix:
            return module if module.partition(".")[0] != "opwright" else None
        if module == self.prefix:
            return ""
        return module[len(self.prefix) + 1 :] if module.startswith(f"{self.prefix}.") else None

    def shipped(self, module: str) -> str | None:
        """What a module is called in the package; None if it is none of the author's and none of opwright's."""
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


def author_of(target: ModuleType, package: str, vendored: frozenset[str]) -> Author:
    """Where the target's author keeps modules, and what they will be called."""
    assert target.__file__ is not None  # a module that defines an operator comes from a file
    file = Path(target.__file__).resolve()
    name = target.__name__
    if name == "__init__":
        raise TargetError(
            f"{file} is a package's file", fix="name the package as Python imports it, as in package.module"
        )
    if file.name == "__init__.py":
        return Author(name, file.parent, name, package, name.rpartition(".")[2], vendored)
    return Author(name, file.parent, name.rpartition(".")[0], package, "", vendored)


def modules_needed(author: Author, files: Iterable[Path]) -> list[SourceModule]:
    """Some of the author's files, and every module of the author's that they import.

    Raises:
        TargetError: they import something that is neither the author's nor installed by pip.
    """
    found: dict[Path, SourceModule] = {}
    waiting = list(files)
    while waiting:
        file = waiting.pop(0)
        if file in found:
            continue
        relative = author.name_of(file)
        if relative is None:
            raise TargetError(f"{file} does not stand in {author.folder}", fix="move it beside the operators' module")
        name = ".".join(filter(None, (author.prefix, relative)))
        text, is_package = file.read_text(), file.name == "__init__.py"
        imported = imports_of(text, name, is_package)
        distributions = set()
        for each in imported:
            local = list(_author_files(author, each))
            waiting += local
            if not local:
                distributions |= _distribution(each, file)
        shipped = ".".join(filter(None, (author.package, author.base, relative)))
        path = "/".join([*filter(None, author.base.split(".")), str(file.relative_to(author.folder))])
        new_text = rename_imports(text, author.shipped, file.name)
        found[file] = SourceModule(name, shipped, file, path, new_text, frozenset(distributions))
        waiting += _packages_above(author, file)
    return list(found.values())


def _author_files(author: Author, imported: Imported) -> Iterator[Path]:
    """The author's files that an import statement runs: the module's, and those of names that are modules."""
    for module in (imported.module, *(f"{imported.module}.{name}" for name in imported.names)):
        file = author.find(module)
        if file is not None:
            yield file


def _packages_above(author: Author, file: Path) -> Iterator[Path]:
    """The ``__init__.py`` files of the packages that a module is in, inside the author's folder."""
    folder = file.parent
    while folder != author.folder and folder.is_relative_to(author.folder):
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py"
        folder = folder.parent
    if author.base and (author.folder / "__init__.py").is_file():
        yield author.folder / "__init__.py"


def _distribution(imported: Imported, file: Path) -> set[str]:
    """What pip installs the module from; nothing for Python's own, for opwright, and where it is optional."""
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
    """The distributions that each top-level module is of."""
    return importlib.metadata.packages_distributions()


def public_names(text: str) -> list[str] | None:
    """A module's ``__all__``, where it is written as a plain list."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            try:
                return list(ast.literal_eval(node.value))
            except ValueError:
                return None
    return None
