"""The files that a build has read, and whether a later build would read the same.

A key of the cache says what a build was asked to do. Which files it read is known only when it has run: its compiler
reports them. They are stored beside the artifact, which is used again only while all of them are as they were, and
while nothing has appeared where the compiler looked first and found nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ReadFiles", "record_files"]


@dataclass(frozen=True)
class ReadFiles:
    """What one build has read. Paths below the folder of its source are relative to it, so that a project may move.

    Attributes:
        own: the user's files with the sha256 of their contents. They are read again for each comparison.
        installed: files of the compiler, the system and torch, with ``st_mtime_ns`` and size. There are hundreds, which
            change only when something is installed.
        missing: names by folder which the compiler would have taken instead, had they been there.
        complete: False if the build may have read other files, too. Its artifact is never used again.
    """

    own: tuple[tuple[str, str], ...] = ()
    installed: tuple[tuple[str, int, int], ...] = ()
    missing: tuple[tuple[str, tuple[str, ...]], ...] = ()
    complete: bool = True

    @property
    def digest(self) -> str:
        """Differs for builds that have read different files."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()[:12]

    def are_unchanged(self, base: Path | None) -> bool:
        """Whether a build would read the same now, with the source in the folder ``base``. Never raises."""
        try:
            return (
                self.complete
                and all(_sha256(_place(base, name)) == digest for name, digest in self.own)
                and all(_stamp(_place(base, name)) == (changed, size) for name, changed, size in self.installed)
                and all(_are_missing(_place(base, folder), names) for folder, names in self.missing)
            )
        except (OSError, ValueError):  # gone, or not readable
            return False

    def to_json(self) -> dict[str, Any]:
        """The record for the artifact's manifest."""
        return {"own": self.own, "installed": self.installed, "missing": self.missing, "complete": self.complete}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> ReadFiles:
        """The record of a manifest. Raises LookupError, TypeError or ValueError if it is damaged."""
        return cls(
            own=tuple((str(name), str(digest)) for name, digest in record["own"]),
            installed=tuple((str(name), int(changed), int(size)) for name, changed, size in record["installed"]),
            missing=tuple((str(folder), tuple(map(str, names))) for folder, names in record["missing"]),
            complete=record["complete"] is True,
        )


def record_files(
    own: Iterable[str], installed: Iterable[str], missing: Iterable[str], *, base: Path, since_ns: int
) -> ReadFiles:
    """What a build has read, by the absolute paths of its files.

    Args:
        missing: paths at which there is no file. A folder there is none that a compiler would take: of ``<algorithm>``,
            in a library that has a folder of that name.
        base: the folder of the source.
        since_ns: when the build began. A file that has changed since may have been read before it changed, so the
            record is then not complete.
    """
    own, installed = sorted(set(own)), sorted(set(installed))
    try:
        return ReadFiles(
            own=tuple((_name(path, base), _sha256(path)) for path in own),
            installed=tuple((_name(path, base), *_stamp(path)) for path in installed),
            missing=tuple(_by_folder({path for path in missing if not os.path.isdir(path)}, base)),
            complete=not any(_changed_ns(path) >= since_ns for path in own),
        )
    except OSError:  # gone since the build
        return ReadFiles(complete=False)


def _by_folder(missing: set[str], base: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The missing paths, or the uppermost missing folder above each, by the folder in which it would be."""
    found: dict[str, set[str]] = {}
    exists = functools.cache(os.path.isdir)
    for path in missing:
        folder, name = os.path.split(path)
        while not exists(folder) and folder != os.path.dirname(folder):
            folder, name = os.path.split(folder)
        found.setdefault(folder, set()).add(name)
    for folder in sorted(found):
        yield _name(folder, base), tuple(sorted(found[folder]))


def _are_missing(folder: str, names: tuple[str, ...]) -> bool:
    try:
        return set(names).isdisjoint(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return True


def _name(path: str, base: Path) -> str:
    inside = f"{base}{os.sep}"
    return path.removeprefix(inside) if path.startswith(inside) else "." if path == str(base) else path


def _place(base: Path | None, name: str) -> str:
    return name if base is None or name.startswith(os.sep) else f"{base}{os.sep}{name}"


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamp(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size


def _changed_ns(path: str) -> int:
    status = os.stat(path)
    return max(status.st_mtime_ns, status.st_ctime_ns)
