"""A CUDA C++ source: its text, its path, and compiler options.

Shared by its compilers: NVRTC for a GPU, nvcc for a host function, the simulator for a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opwright.backends.c_text import included_files
from opwright.backends.cuda.options import parse_options
from opwright.backends.cuda.text.own_headers import DeviceFiles, device_files
from opwright.backends.cuda.text.parsing import declarations

__all__ = ["CudaSource", "kernels_defined"]


@dataclass(frozen=True)
class CudaSource:
    """One translation unit.

    Attributes:
        path: the file, for messages and for ``#include "..."`` beside it; None for text from Python.
        options: nvcc's options, one string each.
    """

    text: str
    path: Path | None = None
    options: tuple[str, ...] = ()

    def device_files(
        self, leave_out: Callable[[str], bool], kernel: str | None = None, instances: Sequence[str] = ()
    ) -> DeviceFiles:
        """The device code of a whole file and of its own headers. Lines keep their numbers.

        Args:
            leave_out: whether a header's name is one that the compiler is given by us.
            kernel: the only kernel that is wanted; None for all.
            instances: of templates among all.
        """
        folders = parse_options(self.options).include_folders
        return device_files(self.text, self.path, folders, leave_out, kernel, instances)

    @property
    def name(self) -> str:
        """The file name for compilers."""
        return self.path.name if self.path else "<cuda source>"

    @property
    def folder(self) -> Path:
        return self.path.parent if self.path else Path.cwd()

    def headers(self) -> list[Path]:
        """The user's own headers that it includes, directly or indirectly."""
        return included_files(self.text, self.path, parse_options(self.options).include_folders)


def kernels_defined(text: str) -> tuple[str, ...]:
    """The names of the ``__global__`` functions in a source, including templates, in order."""
    return declarations(text).kernels
