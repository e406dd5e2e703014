"""The device code of a source together with its own headers, which both compilers of kernels get as copies."""

from __future__ import annotations

import codecs
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelsim.text.device_text import device_sources
from kernelsim.text.includes import included_header, included_sources
from kernelsim.text.other_kernels import with_one_kernel
from kernelsim.text.parsed_source import Edits, ParsedSource

__all__ = ["DeviceFiles", "OwnHeader", "device_files", "is_of_library"]


@dataclass(frozen=True)
class OwnHeader:
    """A header of the user's: its path, the name of its copy for the compiler, and its device code.

    Attributes:
        of_library: whether it is CuTe's or CUTLASS's, which is for kernels as it is.
    """

    path: Path
    copy: str
    source: ParsedSource
    of_library: bool = False

    @property
    def text(self) -> str:
        return self.source.text


@dataclass(frozen=True)
class DeviceFiles:
    """A source's device code, and that of its own headers. Includes of them are as they were written.

    Attributes:
        changed: whether the headers have less than their files: host code is left out, or a byte order mark.
    """

    source: ParsedSource
    path: Path | None
    folders: tuple[Path, ...]
    headers: tuple[OwnHeader, ...]
    changed: bool = False

    @property
    def text(self) -> str:
        return self.source.text

    @property
    def sources(self) -> list[ParsedSource]:
        return [self.source, *(header.source for header in self.headers)]

    def with_one_kernel(self, expression: str) -> DeviceFiles:
        """The same without the bodies of other kernels. A library's headers stay as they are."""
        own = [header for header in self.headers if not header.of_library]
        source, *left = with_one_kernel([self.source, *(header.source for header in own)], expression)
        cut = dict(zip((header.path for header in own), left, strict=True))
        headers = tuple(replace(header, source=cut.get(header.path, header.source)) for header in self.headers)
        return replace(self, source=source, headers=headers)

    def redirects(
        self, source: ParsedSource, path: Path | None, leave_out: Callable[[str], bool]
    ) -> Iterator[tuple[int, int, str]]:
        """The edits with which a source's includes of own headers are those of their copies."""
        copies = {header.path: header.copy for header in self.headers}
        for include in source.includes:
            header = included_header(include, path, self.folders, leave_out)
            if header in copies:
                yield include.opening, include.end, f'"{copies[header]}"'

    def redirected(self, source: ParsedSource, path: Path | None, leave_out: Callable[[str], bool]) -> str:
        """The text of a source with its includes of own headers changed to their copies."""
        return Edits(source, self.redirects(source, path, leave_out)).text()


def device_files(
    source: ParsedSource,
    path: Path | None,
    folders: Sequence[Path],
    leave_out: Callable[[str], bool],
    kernel: str | None = None,
    instances: Sequence[str] = (),
) -> DeviceFiles:
    """The device code of a source and of its own headers.

    Args:
        folders: include folders.
        leave_out: whether a header's name is one that the compiler is given by us.
        kernel: the only kernel that is wanted; None for all.
        instances: of templates among all: their arguments may be types that no kernel names.
    """
    found = included_sources(source, path, folders, leave_out)
    users = {header: original for header, original in found.items() if not is_of_library(header)}
    wanted = (kernel,) if kernel is not None else (*_kernels_of((source, *users.values())), *instances)
    text, *cut = device_sources((source, *users.values()), wanted)
    left = dict(zip(users, cut, strict=True))
    headers = tuple(
        OwnHeader(header, f"own{i}_{header.name}", left.get(header, original), is_of_library(header))
        for i, (header, original) in enumerate(found.items())
    )
    changed = cut != list(users.values()) or any(_begins_with_mark(header) for header in found)
    return DeviceFiles(text, path, tuple(folders), headers, changed)


def _begins_with_mark(header: Path) -> bool:
    with header.open("rb") as file:
        return file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8


@functools.cache
def is_of_library(header: Path) -> bool:
    """Whether a header is beside CUTLASS's own, in the folder of CuTe or CUTLASS."""
    return any(
        folder.name in ("cute", "cutlass") and (folder.parent / "cutlass" / "cutlass.h").is_file()
        for folder in header.parents
    )


def _kernels_of(sources: Sequence[ParsedSource]) -> list[str]:
    return [name for source in sources if "__global__" in source.text for name in source.kernels]
