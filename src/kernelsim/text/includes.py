"""The user's headers that a source includes, as far as that can be known before a compiler runs.

The files that a build has read are another matter (``compiler_inputs.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kernelsim.text.parsed_source import Include, ParsedSource, parsed

__all__ = ["find_header", "included_files", "included_header", "included_sources", "source_text"]


def source_text(path: Path) -> str:
    """The text of a source or header, of which a byte order mark is no part: compilers know one at a file's begin only.

    Raises:
        OSError: the file cannot be read.
    """
    return path.read_text(encoding="utf-8-sig", errors="replace")


def find_header(name: str, includer: Path | None, folders: Sequence[Path]) -> Path | None:
    """The user's file that an ``#include`` names. It is beside the file that includes it (in the working folder, for a
    text without a file), else in one of the folders. None for headers of the system."""
    beside = includer.parent if includer is not None else Path.cwd()
    found = next((folder / name for folder in (beside, *folders) if (folder / name).is_file()), None)
    return found.resolve() if found is not None else None


def included_header(
    include: Include, includer: Path | None, folders: Sequence[Path], leave_out: Callable[[str], bool]
) -> Path | None:
    """The user's file that an ``#include`` names; None for one whose name is left out.

    A name in quotes of a file beside the one that includes it means that file, whatever the name is.
    """
    name = include.name
    is_beside = include.in_quotes and includer is not None and (includer.parent / name).is_file()
    return find_header(name, includer, folders) if is_beside or not leave_out(name) else None


def included_files(
    text: str, path: Path | None, folders: Sequence[Path], *, leave_out: Callable[[str], bool] = lambda name: False
) -> list[Path]:
    """The user's own headers that a source includes, directly or not, each once."""
    return list(included_sources(parsed(text), path, folders, leave_out))


def included_sources(
    source: ParsedSource, path: Path | None, folders: Sequence[Path], leave_out: Callable[[str], bool]
) -> dict[Path, ParsedSource]:
    """The user's own headers that a source includes, directly or not, with their texts.

    Headers of torch, CUDA and the compiler are not among them, nor those that only the preprocessor can name.

    Args:
        path: the source's file, whose folder is searched first; None for a text without a file.
        folders: the folders that are searched next.
        leave_out: whether to ignore a name, such as that of a header that is provided in another way.
    """
    found: dict[Path, ParsedSource] = {}
    waiting = [(source, path)]
    while waiting:
        current, includer = waiting.pop()
        for include in current.includes:
            header = included_header(include, includer, folders, leave_out)
            if header is not None and header not in found:
                found[header] = parsed(source_text(header))
                waiting.append((found[header], header))
    return found
