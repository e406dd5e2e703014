"""The device code of a source together with its own headers, which both compilers of kernels get as copies."""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opwright.backends.c_text import INCLUDE, included_files, included_header, source_text
from opwright.backends.cuda.text.device_text import device_texts
from opwright.backends.cuda.text.other_kernels import with_one_kernel
from opwright.backends.cuda.text.parsing import declarations

__all__ = ["DeviceFiles", "OwnHeader", "device_files"]


@dataclass(frozen=True)
class OwnHeader:
    """A header of the user's: its path, the name of its copy for the compiler, and its device code.

    Attributes:
        of_library: whether it is CuTe's or CUTLASS's, which is for kernels as it is.
    """

    path: Path
    copy: str
    text: str
    of_library: bool = False


@dataclass(frozen=True)
class DeviceFiles:
    """A source's device code, and that of its own headers. Includes of them are as they were written.

    Attributes:
        changed: whether the headers have less than their files: host code is left out, or a byte order mark.
    """

    text: str
    path: Path | None
    folders: tuple[Path, ...]
    headers: tuple[OwnHeader, ...]
    changed: bool = False

    def with_one_kernel(self, expression: str) -> DeviceFiles:
        """The same without the bodies of other kernels. A library's headers stay as they are."""
        own = [header for header in self.headers if not header.of_library]
        text, *left = with_one_kernel([self.text, *(header.text for header in own)], expression)
        cut = dict(zip((header.path for header in own), left, strict=True))
        headers = tuple(replace(header, text=cut.get(header.path, header.text)) for header in self.headers)
        return replace(self, text=text, headers=headers)

    def redirected(self, text: str, includer: Path | None, leave_out: Callable[[str], bool]) -> str:
        """A text with its includes of own headers changed to their copies."""
        copies = {header.path: header.copy for header in self.headers}

        def redirect(found: re.Match[str]) -> str:
            header = included_header(found, includer, self.folders, leave_out)
            return f'{found[1]}"{copies[header]}"' if header in copies else found[0]  # else in a comment

        return INCLUDE.sub(redirect, text)


def device_files(
    text: str,
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
    found = included_files(text, path, folders, leave_out=leave_out)
    originals = [source_text(header) for header in found]
    users = [original for header, original in zip(found, originals, strict=True) if not _is_of_library(header)]
    wanted = (kernel,) if kernel is not None else (*_kernels_of((text, *users)), *instances)
    texts = device_texts((text, *users), wanted)
    cut = iter(texts[1:])
    headers = tuple(
        OwnHeader(header, f"own{i}_{header.name}", original, of_library=True)
        if _is_of_library(header)
        else OwnHeader(header, f"own{i}_{header.name}", next(cut))
        for i, (header, original) in enumerate(zip(found, originals, strict=True))
    )
    changed = list(texts[1:]) != users or any(_begins_with_mark(header) for header in found)
    return DeviceFiles(texts[0], path, tuple(folders), headers, changed)


def _begins_with_mark(header: Path) -> bool:
    with header.open("rb") as file:
        return file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8


@functools.cache
def _is_of_library(header: Path) -> bool:
    """Whether a header is beside CUTLASS's own, in the folder of CuTe or CUTLASS."""
    return any(
        folder.name in ("cute", "cutlass") and (folder.parent / "cutlass" / "cutlass.h").is_file()
        for folder in header.parents
    )


def _kernels_of(texts: Sequence[str]) -> list[str]:
    return [name for text in texts if "__global__" in text for name in declarations(text).kernels]
