"""The on-disk cache of compiled kernels: shared objects, cubins, PTX, and the sources beside them.

One folder per artifact, ``<root>/<name>-<digest>/``, with a ``manifest.json`` that lists every
file's size and sha256. A folder is filled under ``<root>/.tmp`` and renamed into place, so a
reader sees all of it or nothing. One lock file per artifact, under ``<root>/.locks``, makes
builders of the same artifact take turns; reading takes no lock.

A build that says which files it has read may have several artifacts, one for each state of these
files: ``<root>/<name>-<digest>.<digest of the state>/``. The manifest lists them too. One that cannot
say it is built anew in every process.

What is loaded from here runs as the user, so nothing is loaded that another user could have written:
see ``file_trust.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from opwright.cache import folders
from opwright.cache.artifact import MANIFEST, ArtifactKey, Verified, folders_of, publish, verified
from opwright.errors import CompileError
from opwright.file_trust import why_untrusted
from opwright.read_files import ReadFiles

__all__ = ["ArtifactCache", "Supplier", "Turn"]

# A build fills a folder; it returns what it has read, or None if the key covers all of that.
Build = Callable[[Path], ReadFiles | None]


class Supplier(Protocol):
    """Brings artifacts that other machines have built, and takes those that are built here."""

    def bring(self, key: str, root: Path) -> Turn:
        """Put what others have built into the cache's folder; if there is nothing, it is this process's turn to build.

        Args:
            key: ``ArtifactKey.folder``.
        """
        ...


class Turn(Protocol):
    """A build for all machines: others wait for it until it is over."""

    def over(self, built: Path | None) -> None:
        """The finished artifact; None if there is none, so that another machine may try."""
        ...


class ArtifactCache:
    """Compiled kernels below one folder, shared by threads, by processes and from run to run."""

    def __init__(self, root: Path, supplier: Supplier | None = None) -> None:
        self.root = Path(os.path.abspath(root))  # a later chdir must not move the cache
        self._supplier = supplier
        self._private: Path | None = None
        self._verified: dict[Path, Verified] = {}
        self._errors: dict[str, CompileError] | None = None

    def get_or_build(
        self,
        key: ArtifactKey,
        build: Build,
        *,
        on_build: Callable[[], None] | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> Path:
        """Return the folder with the artifact of ``key``; if there is none, ``build(folder)`` fills it.

        ``build`` gets an empty folder that is moved afterwards, so no file in it may contain the folder's path;
        the file name manifest.json is reserved. ``on_build`` is called just before ``build``, ``on_wait``
        once if another builder must be waited for. A root that cannot be written or trusted is not an error:
        a temporary folder replaces it, with a CacheFallbackWarning once per process.

        Raises CacheError when the disk is full, when ``build`` wrote no file, or when not even a
        temporary folder can be written. Other exceptions of ``build`` or the callbacks pass
        unchanged. After any exception nothing is cached (but see ``keeping_errors``) and the lock is released.
        """
        if self._errors is not None and key.folder in self._errors:
            raise self._errors[key.folder].with_traceback(None)
        try:
            return self._found_or_built(key, build, on_build, on_wait)
        except CompileError as error:
            if self._errors is not None:
                self._errors[key.folder] = error
            raise

    @contextmanager
    def keeping_errors(self) -> Iterator[None]:
        """In a block in which no source changes, raise an error of a compiler again in place of compiling again."""
        before, self._errors = self._errors, {} if self._errors is None else self._errors
        try:
            yield
        finally:
            self._errors = before

    def _found_or_built(
        self, key: ArtifactKey, build: Build, on_build: Callable[[], None] | None, on_wait: Callable[[], None] | None
    ) -> Path:
        found = self.find(key)
        if found is not None:
            return found
        try:
            return self._build_in(self.root, key, build, on_build, on_wait)
        except folders.RootUnusableError as unusable:
            self._private = folders.private_root(unusable)
        return self._build_in(self._private, key, build, on_build, on_wait)

    def find(self, key: ArtifactKey) -> Path | None:
        """The folder of a valid artifact, or None. Never writes, waits or raises."""
        found = (folder for root in self._roots() if why_untrusted(root) is None for folder in folders_of(root, key))
        return next((folder for folder in found if self._is_valid(folder, key)), None)

    def remove(self, key: ArtifactKey) -> None:
        """Remove the artifact of ``key``, if there is one. Raises CacheError if it cannot be removed."""
        for root in self._roots():
            for folder in folders_of(root, key):
                folders.discard(root, folder)

    def entries(self) -> list[Path]:
        """The artifacts' folders, sorted; their files are not verified."""
        return sorted(file.parent for root in self._roots() for file in root.glob(f"[!.]*/{MANIFEST}"))

    def size_bytes(self) -> int:
        """The size of all artifacts' files in bytes."""
        total = 0
        for entry in self.entries():
            with suppress(OSError):  # another process may be removing it
                total += sum(path.stat().st_size for path in entry.rglob("*") if path.is_file())
        return total

    def clear(self) -> int:
        """Remove all artifacts and the leftovers of dead builds; return the number of artifacts.

        Running builds continue. Raises CacheError if an artifact cannot be removed.
        """
        entries = self.entries()
        for entry in entries:
            folders.discard(entry.parent, entry)
        for root in self._roots():
            folders.remove_leftovers(root)
        return len(entries)

    def _roots(self) -> list[Path]:
        return [self.root] if self._private is None else [self.root, self._private]

    def _build_in(
        self,
        root: Path,
        key: ArtifactKey,
        build: Build,
        on_build: Callable[[], None] | None,
        on_wait: Callable[[], None] | None,
    ) -> Path:
        with folders.explaining_full_disk(root, key.name), folders.locked(root, key.folder, on_wait):
            if (found := self._valid_in(root, key)) is not None:  # built by another process in the meantime
                return found
            turn = None if self._supplier is None else self._supplier.bring(key.folder, root)
            built = None
            try:
                built = self._valid_in(root, key) or self._build_anew(root, key, build, on_build)
            finally:
                if turn is not None:
                    turn.over(built if built is not None and built.parent == root else None)
            return built

    def _build_anew(self, root: Path, key: ArtifactKey, build: Build, on_build: Callable[[], None] | None) -> Path:
        folders.remove_leftovers(root)
        scratch = folders.new_scratch(root)
        try:
            with folders.writing(root):
                scratch.mkdir(mode=0o700)
            if on_build is not None:
                on_build()
            read = build(scratch)
            if read is not None and not read.complete:
                return scratch  # for this process only; removed as a leftover when it has ended
            return publish(scratch, root, key, read)
        except BaseException:
            folders.delete(scratch)
            raise

    def _valid_in(self, root: Path, key: ArtifactKey) -> Path | None:
        return next((folder for folder in folders_of(root, key) if self._is_valid(folder, key)), None)

    def _is_valid(self, folder: Path, key: ArtifactKey) -> bool:
        try:
            known = self._verified.get(folder)
            if known is None or not known.are_unchanged(folder):
                known = self._verified[folder] = verified(folder, key)
        except (OSError, ValueError, LookupError, TypeError, RecursionError):  # any error from a damaged file
            self._verified.pop(folder, None)
            return False
        return known.read.are_unchanged(key.base)
