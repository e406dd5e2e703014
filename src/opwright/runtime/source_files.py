"""The files that an operator is made of: its Python module, and what its kernels name and include."""

from __future__ import annotations

import sys
from pathlib import Path

from opwright.backends import get_backend
from opwright.contract.fingerprint import digest
from opwright.runtime.op import Op

__all__ = ["digest_of_sources", "kernel_files", "source_files"]


def digest_of_sources(operator: Op) -> str:
    """A digest of an operator and its kernels, and of the user's headers that they include."""
    texts = (file.read_bytes().hex() for file in kernel_files(operator))
    return digest(operator.contract.qualname, operator._untuned_fingerprint, *texts)


def source_files(operator: Op) -> list[Path]:
    """The user's own files that another machine needs to import the operator and to build its kernels."""
    return [*_python_files(operator), *(file for file in kernel_files(operator) if _is_users(str(file)))]


def kernel_files(operator: Op) -> list[Path]:
    """The files that kernels name, with those that they include or may import."""
    specs = [kernel.spec for kernel in operator.kernels.values()]
    found = dict.fromkeys(file for spec in specs for file in get_backend(spec.backend).files(spec))
    return sorted(file for file in found if file.is_file())


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
