"""ATen's headers for host functions on ``at::Tensor``: few of them, precompiled where the compiler is gcc."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from opwright.backends.build_tools import BuildTools
from opwright.backends.compiler import run_compiler
from opwright.backends.compiler_inputs import key_parts
from opwright.backends.native.abi import INCLUDE
from opwright.backends.simulation import parsed
from opwright.cache import ArtifactKey
from opwright.errors import CacheError, CompileError
from opwright.machine import Compiler

__all__ = ["includes_python", "needs_all_headers", "precompiled", "prefer_few_headers", "used"]

# Folders with opwright's short forms of <torch/extension.h> and the like, which come before torch's.
_FEW = Path(__file__).parent / "aten"
_PREFIX = "opwright/aten.h"
# What only the whole of <torch/extension.h> has.
_WHOLE = re.compile(
    r"\b(?:py|pybind11)\s*::|\btorch\s*::\s*(?:nn|optim|jit|data|autograd|serialize|python|load|save)\b"
)
# Python's own interface, of which <Python.h> is enough.
_PYTHON = re.compile(r"\bPy[A-Z]\w+")
_HEADER = re.compile(r"ATen/|torch/(?:extension|all|torch|script|types|library|python|csrc/autograd/.*)\.h|c10/cuda/")
_TENSOR = re.compile(r"\b(?:at|torch)\s*::\s*Tensor\b")


def used(text: str) -> str:
    """The header of ATen whose tensors a source uses, by its name; "" if it uses none."""
    found = [header for header in _included(text) if _HEADER.match(header)]
    return found[0] if found and _TENSOR.search(parsed(text).code) else ""


def needs_all_headers(text: str) -> bool:
    """Whether a source, without its registrations, uses pybind11 or torch's C++ frontend.

    Or Python, which it gets from <torch/extension.h> unless it includes <Python.h> itself.
    """
    code = parsed(text).code
    return bool(_WHOLE.search(code)) or (bool(_PYTHON.search(code)) and not includes_python(text))


def includes_python(text: str) -> bool:
    """Whether a source includes <Python.h>."""
    return "Python.h" in _included(text)


def _included(text: str) -> list[str]:
    return [include.name for include in parsed(text).includes]


def prefer_few_headers() -> list[str]:
    """Flags with which <torch/extension.h> is opwright's short form."""
    return [f"-I{_FEW}"]


def precompiled(compiler: Compiler, flags: Sequence[str], tools: BuildTools) -> list[str]:
    """Flags with which gcc reads the precompiled headers: made once for a torch, a compiler and its flags.

    Empty for other compilers, and if they cannot be made: then each build reads the text of the headers.
    """
    if "clang" in compiler.version.lower():
        return []
    key = ArtifactKey(
        name="aten_headers",
        parts=(
            ("header", (INCLUDE / _PREFIX).read_text()),
            ("flags", " ".join(f for f in flags if not f.startswith("-I"))),
            *key_parts(compiler, ()),
            ("torch", torch.__version__),
        ),
    )

    def make(folder: Path) -> None:
        header = folder / _PREFIX
        header.parent.mkdir()
        shutil.copy(INCLUDE / _PREFIX, header)  # gcc reads it where it is included again
        command = [compiler.path, *(f for f in flags if f != "-shared"), "-x", "c++-header", str(header)]
        run_compiler([*command, "-o", f"{header}.gch"], f"{_PREFIX} with {compiler.version}")

    try:
        folder = tools.cache.get_or_build(
            key,
            make,
            on_build=lambda: tools.notify(
                f"precompiling ATen's headers of torch {torch.__version__}: 430 MB in the cache, once; "
                "later builds take seconds"
            ),
            on_wait=lambda: tools.notify("waiting: another process precompiles ATen's headers"),
        )
    except (CompileError, CacheError, OSError) as error:
        tools.notify(f"ATen's headers are read at each build, which takes longer: {error}")
        return []
    return [f"-I{folder}"]
