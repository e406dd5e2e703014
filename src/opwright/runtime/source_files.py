"""The files that an operator is made of: its Python module, and what its kernels name and include."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from opwright.backends.c_text import included_files
from opwright.backends.cuda.module import CudaModule
from opwright.backends.reachable import values_reached
from opwright.contract.fingerprint import digest
from opwright.runtime.op import Op

__all__ = ["digest_of_sources", "kernel_files", "source_files"]

_C_LIKE = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")


def digest_of_sources(operator: Op) -> str:
    """A digest of an operator and its kernels, and of the user's headers that they include."""
    texts = (file.read_bytes().hex() for file in kernel_files(operator))
    return digest(operator.contract.qualname, operator._untuned_fingerprint, *texts)


def source_files(operator: Op) -> list[Path]:
    """The user's own files that another machine needs to import the operator and to build its kernels."""
    return [*_python_files(operator), *(file for file in kernel_files(operator) if _is_users(str(file)))]


def kernel_files(operator: Op) -> list[Path]:
    """The files that kernels name, with the headers that they include; of Mojo, everything beside it, too."""
    found: dict[Path, None] = {}
    for kernel in operator.kernels.values():
        source = kernel.spec.source
        if isinstance(source, Path):
            found |= dict.fromkeys(_with_includes(source))
        else:
            modules = [v for v in values_reached(source) if isinstance(v, CudaModule)]
            for module in modules:
                if module.source.path is not None:
                    found[module.source.path.absolute()] = None
                found |= dict.fromkeys(header.absolute() for header in module.source.headers())
    return sorted(file for file in found if file.is_file())


def _with_includes(source: Path) -> Iterator[Path]:
    source = source.absolute()
    yield source
    if source.suffix in _C_LIKE and source.is_file():
        yield from (header.absolute() for header in included_files(source.read_text(errors="replace"), source, ()))
    elif source.suffix == ".mojo":
        yield from source.parent.glob("*.mojo")


def _python_files(operator: Op) -> list[Path]:
    """The operator's module, and those modules of the same folder or package that are imported."""
    module = sys.modules.get(operator.contract.module)
    own = getattr(module, "__file__", None)
    if own is None or operator.contract.module == "__main__" or not _is_users(own):
        return []
    folder, package = Path(own).parent, operator.contract.module.partition(".")[0]
    files = {
        Path(file).absolute()
        for name, loaded in list(sys.modules.items())
        if (file := getattr(loaded, "__file__", None)) is not None and file.endswith(".py") and _is_users(file)
        if name.partition(".")[0] == package or Path(file).parent == folder
    }
    return sorted(file for file in files if file.is_file())


def _is_users(file: str) -> bool:
    """Whether it is no part of an installed library, or of opwright."""
    here = str(Path(__file__).parent.parent)
    return "site-packages" not in file and not file.startswith((sys.base_prefix + "/lib/", here))
