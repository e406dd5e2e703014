"""CUDA C++ as its author gave it: the text, where it came from, and the options for whoever compiles it.

Shared by all that compiles it: NVRTC for a GPU, nvcc for a host function, the simulator for a CPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from opwright.backends.c_text import blank_out, included_files
from opwright.backends.cuda.options import parse_options

__all__ = ["CudaSource", "kernels_defined"]


@dataclass(frozen=True)
class CudaSource:
    """One translation unit.

    Attributes:
        path: the file, for messages and for ``#include "..."`` beside it; None for text given in Python.
        options: as given to nvcc, one string each.
    """

    text: str
    path: Path | None = None
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What compilers call the file."""
        return self.path.name if self.path else "<cuda source>"

    @property
    def folder(self) -> Path:
        return self.path.parent if self.path else Path.cwd()

    def headers(self) -> list[Path]:
        """The user's own headers that it includes, directly or not."""
        return included_files(self.text, self.path, parse_options(self.options).include_folders)


def kernels_defined(text: str) -> tuple[str, ...]:
    """The names of the ``__global__`` functions in a source, templates among them, in order."""
    pattern = r"__global__\b[^;{}()]*?(?:__launch_bounds__\s*\([^)]*\)[^;{}()]*?)?\b(\w+)\s*\("
    return tuple(dict.fromkeys(re.findall(pattern, blank_out(text))))
