"""A CUDA C++ source: its text, its path, and compiler options.

Shared by its compilers: NVRTC for a GPU, nvcc for a host function, the simulator for a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelsim.errors import KernelError
from kernelsim.text.includes import included_sources
from kernelsim.text.options import parse_options
from kernelsim.text.own_headers import DeviceFiles, device_files, is_of_library
from kernelsim.text.parsed_source import ParsedSource, parsed

__all__ = ["CudaSource", "check_name", "full_name"]


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

    @property
    def parsed(self) -> ParsedSource:
        return parsed(self.text)

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
        return device_files(self.parsed, self.path, folders, leave_out, kernel, instances)

    @property
    def name(self) -> str:
        """The file name for compilers."""
        return self.path.name if self.path else "<cuda source>"

    @property
    def folder(self) -> Path:
        return self.path.parent if self.path else Path.cwd()

    def headers(self) -> dict[Path, ParsedSource]:
        """The user's own headers that it includes, directly or indirectly."""
        folders = parse_options(self.options).include_folders
        return included_sources(self.parsed, self.path, folders, leave_out=lambda name: False)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of its kernels, then those of its own headers; a library's headers are left out."""
        return tuple(dict.fromkeys(name for source in self._with_kernels() for name in source.kernels))

    def defining(self, kernel: str) -> ParsedSource:
        """The text with a kernel, which may have namespaces and template arguments: its own, or that of a header."""
        bare = _bare(kernel)
        return next((source for source in self._with_kernels() if bare in source.kernels), self.parsed)

    def _with_kernels(self) -> Iterator[ParsedSource]:
        yield self.parsed
        for path, header in self.headers().items():
            if "__global__" in header.text and not is_of_library(path):
                yield header


def _bare(kernel: str) -> str:
    return kernel.split("<")[0].strip(" &").split("::")[-1]


def check_name(source: CudaSource, name: str) -> None:
    """Raise a KernelError if a source has no kernel of a name, which may have namespaces and template arguments."""
    bare = _bare(name)
    if bare not in source.defining(name).kernels:
        raise KernelError(
            f"{source.name}: the kernel must be one of {list(source.kernels)}, got {bare!r}",
            fix="name one of them, or define it",
        )


def full_name(source: CudaSource, name: str) -> str:
    """The name of a kernel with its namespaces, and with the template arguments that it was given.

    Raises:
        KernelError: there is none of that name, or several; or it is a template, and has no arguments.
    """
    check_name(source, name)
    bare, opening, arguments = name.partition("<")
    defining = source.defining(name)
    found = defining.qualified_names(_bare(name))
    fitting = [f for f in found if f == bare.strip() or f.endswith(f"::{bare.strip()}")]
    if len(set(fitting)) > 1:
        raise KernelError(f"{source.name}: {name!r} is ambiguous", fix=f"name one of {', '.join(sorted(set(fitting)))}")
    if not opening and defining.is_template(_bare(name)):
        raise KernelError(
            f"{source.name}: {name!r} is a template",
            fix=f"a template needs its arguments, as in module['{name}<float>']; {name}<> if all have defaults",
        )
    return f"{fitting[0]}{opening}{arguments}" if fitting else name
