"""Builds opwright's own native extensions of Python: once for a torch, a Python and a compiler, and then cached."""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from opwright.backends.build_tools import BuildTools
from opwright.backends.compiler import run_compiler
from opwright.backends.compiler_inputs import key_parts
from opwright.backends.native.tensor_access import LIBRARIES, access_to_tensors, python_headers
from opwright.cache import ArtifactKey
from opwright.errors import CacheError, CompileError
from opwright.machine import Compiler

__all__ = [
    "TESTED_PYTHONS", "Extension", "build_extension", "is_tested_python", "load_extension", "load_for_python",
]  # fmt: skip

Loaded = TypeVar("Loaded")

_TEMPLATES = Path(__file__).parent / "templates"
# Other versions, and builds without a global lock, have no fast calls: every call takes the plain way.
TESTED_PYTHONS = ((3, 11), (3, 12), (3, 13))


@dataclass(frozen=True)
class Extension:
    """What an extension is built from.

    Attributes:
        sources: file names in ``templates``: the one to compile, then those that it includes.
        libraries: torch's libraries that it is linked with.
        folder: a folder with sources that are not in ``templates``.
    """

    name: str
    sources: Sequence[str]
    flags: Sequence[str]
    libraries: Sequence[str]
    folder: Path = _TEMPLATES

    def file(self, source: str) -> Path:
        """The file of a source."""
        own = self.folder / source
        return own if own.is_file() else _TEMPLATES / source


def build_extension(extension: Extension, compiler: Compiler, headers: Path, tools: BuildTools) -> Path:
    """The extension's library, from the cache or built.

    Args:
        headers: the folder of Python's headers.

    Raises:
        CompileError, CacheError: it cannot be built or kept.
    """
    source = extension.sources[0]

    def make(folder: Path) -> None:
        torch_headers = LIBRARIES.parent / "include"
        includes = [
            *dict.fromkeys(f"-I{folder}" for folder in (extension.folder, _TEMPLATES)),
            f"-I{torch_headers}",
            f"-I{torch_headers}/torch/csrc/api/include",
            f"-I{headers}",
        ]
        libraries = [f"-L{LIBRARIES}", *(f"-l{library}" for library in extension.libraries)]
        command = [compiler.path, *extension.flags, *includes, str(extension.file(source)), "-o", str(_library(folder))]
        run_compiler([*command, *libraries], f"{source} with {compiler.version}")

    folder = tools.cache.get_or_build(
        _key(extension, compiler),
        make,
        on_build=lambda: tools.notify(f"compiling {source} with {compiler.version}; cached for all kernels"),
        on_wait=lambda: tools.notify(f"waiting: another process compiles {source}"),
    )
    return _library(folder)


def load_for_python(
    extension: Extension,
    tools: BuildTools,
    loaded: Callable[[Path, tuple[int, int | None]], Loaded],
    without: str,
    *,
    build: bool,
) -> Loaded | None:
    """An extension that reaches into Python's tensors.

    Args:
        loaded: takes the library and ``access_to_tensors``.
        without: what is so without it, for the message about a failure.
        build: whether it is built if it is not in the cache.

    Returns:
        None if it does not load, or is not in the cache and cannot or shall not be built.
    """
    compiler, headers, access = tools.machine.cxx, python_headers(), access_to_tensors()
    if compiler is None or headers is None or access is None or not access[0] or not is_tested_python():
        return None
    try:
        library = _find(extension, compiler, headers, tools, build=build)
        return loaded(library, access) if library is not None else None
    except (CompileError, CacheError, OSError) as error:
        tools.notify(f"{without}: {error}")
        return None


def is_tested_python() -> bool:
    """Whether the extensions, and what is known of code, were tested with this Python: one with a lock, of a version in
    ``TESTED_PYTHONS``."""
    return not sysconfig.get_config_var("Py_GIL_DISABLED") and sys.version_info[:2] in TESTED_PYTHONS


def load_extension(library: Path, access: tuple[int, int | None]) -> ctypes.PyDLL:
    """Load an extension, which then knows how to reach tensors (``access_to_tensors``)."""
    loaded = ctypes.PyDLL(str(library))
    loaded.opwright_reach_tensors.argtypes = [*[ctypes.py_object] * 2, ctypes.c_size_t, ctypes.c_void_p]
    loaded.opwright_reach_tensors.restype = None
    loaded.opwright_reach_tensors(torch.Tensor, torch.nn.Parameter, *access)
    return loaded


def _find(extension: Extension, compiler: Compiler, headers: Path, tools: BuildTools, *, build: bool) -> Path | None:
    """The extension's library from the cache; if it is not there, built, or None if it shall not be."""
    if build:
        return build_extension(extension, compiler, headers, tools)
    folder = tools.cache.find(_key(extension, compiler))
    return _library(folder) if folder is not None else None


def _library(folder: Path) -> Path:
    return folder / "extension.so"


def _key(extension: Extension, compiler: Compiler) -> ArtifactKey:
    return ArtifactKey(
        name=extension.name,
        parts=(
            *((name, extension.file(name).read_text()) for name in extension.sources),
            ("flags", " ".join(extension.flags)),
            *key_parts(compiler, ()),
            ("torch", torch.__version__),
            ("python", str(sys.implementation.cache_tag)),
        ),
    )
