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

import atexit
import errno
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import socket
import tarfile
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from opwright.errors import CacheError
from opwright.file_trust import OTHERS_WRITE, why_untrusted
from opwright.read_files import ReadFiles

__all__ = [
    "FULL_DISK", "ArtifactCache", "ArtifactKey", "CacheFallbackWarning", "Supplier", "Turn", "pack", "unpack",
]  # fmt: skip

# How the message of such an error begins.
FULL_DISK = "The disk is full"

_MANIFEST = "manifest.json"
_SCHEMA = "opwright.artifact/2"
_LOCKS, _TMP = ".locks", ".tmp"  # an artifact's folder never begins with a dot
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_LONGEST_SHOWN = 200  # longer parts of a key (whole sources) are stored in the manifest as a hash
_DAY_S = 24 * 60 * 60

_Stamp = tuple[int, int, int]  # st_ctime_ns, st_size, st_ino: a file with the same stamp is unchanged, its mode too
# A build fills a folder; it returns what it has read, or None if the key covers all of that.
Build = Callable[[Path], ReadFiles | None]


class CacheFallbackWarning(UserWarning):
    """The cache's folder cannot be written or trusted; a temporary one that dies with the process is used."""


class _RootUnusableError(CacheError):
    """The root cannot be created, written, locked or trusted, for a reason other than a full disk."""


@dataclass(frozen=True)
class ArtifactKey:
    """What an artifact depends on, besides the files that its build reads; those below ``base`` may move with it."""

    name: str  # readable; becomes part of the folder's name
    parts: tuple[tuple[str, str], ...]  # (label, value): the compiler, its flags, the source, ...
    base: Path | None = field(default=None, compare=False)

    @cached_property
    def digest(self) -> str:
        """The first 20 hex digits of a sha256 over the name and every part, in their order."""
        texts = (self.name, *(text for part in self.parts for text in part))
        # Each text is preceded by its length, so that no two keys give the same bytes.
        return _sha256(b"".join(b"%d:%b" % (len(data), data) for data in map(_encode, texts)))[:20]

    @property
    def folder(self) -> str:
        """The artifact's folder below the root: ``<sanitised name>-<digest>``."""
        return f"{_sanitise(self.name)}-{self.digest}"


@dataclass(frozen=True)
class _Verified:
    """An artifact whose files are what was built, while their stamps stay the same; and what its build has read."""

    stamps: dict[str, _Stamp]
    read: ReadFiles


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
        self._verified: dict[Path, _Verified] = {}

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
        unchanged. After any exception nothing is cached and the lock is released.
        """
        found = self.find(key)
        if found is not None:
            return found
        try:
            return self._build_in(self.root, key, build, on_build, on_wait)
        except _RootUnusableError as unusable:
            self._private = _private_root(unusable)
        return self._build_in(self._private, key, build, on_build, on_wait)

    def find(self, key: ArtifactKey) -> Path | None:
        """The folder of a valid artifact, or None. Never writes, waits or raises."""
        folders = (folder for root in self._roots() if why_untrusted(root) is None for folder in _folders(root, key))
        return next((folder for folder in folders if self._is_valid(folder, key)), None)

    def remove(self, key: ArtifactKey) -> None:
        """Remove the artifact of ``key``, if there is one. Raises CacheError if it cannot be removed."""
        for root in self._roots():
            for folder in _folders(root, key):
                _discard(root, folder)

    def entries(self) -> list[Path]:
        """The artifacts' folders, sorted; their files are not verified."""
        return sorted(file.parent for root in self._roots() for file in root.glob(f"[!.]*/{_MANIFEST}"))

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
            _discard(entry.parent, entry)
        for root in self._roots():
            _remove_leftovers(root)
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
        with _explaining_full_disk(root, key), _locked(root, key, on_wait):
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
        _remove_leftovers(root)
        scratch = _new_scratch(root)
        try:
            with _writing(root):
                scratch.mkdir(mode=0o700)
            if on_build is not None:
                on_build()
            read = build(scratch)
            if read is not None and not read.complete:
                return scratch  # for this process only; removed as a leftover when it has ended
            return _publish(scratch, root, key, read)
        except BaseException:
            _delete(scratch)
            raise

    def _valid_in(self, root: Path, key: ArtifactKey) -> Path | None:
        return next((folder for folder in _folders(root, key) if self._is_valid(folder, key)), None)

    def _is_valid(self, folder: Path, key: ArtifactKey) -> bool:
        try:
            known = self._verified.get(folder)
            if known is None or any(_stamp(folder / name) != stamp for name, stamp in known.stamps.items()):
                known = self._verified[folder] = _verify(folder, key)
        except (OSError, ValueError, LookupError, TypeError, RecursionError):  # any error from a damaged file
            self._verified.pop(folder, None)
            return False
        return known.read.are_unchanged(key.base)


def pack(folder: Path) -> bytes:
    """An artifact's folder in bytes, for another machine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def unpack(data: bytes, name: str, root: Path) -> None:
    """Put the bytes of ``pack`` into a cache as an artifact of this name, unless it is there. It is verified when it is
    used, as every artifact.

    Raises:
        OSError: the folder cannot be written.
    """
    if name.startswith(".") or "/" in name or os.path.lexists(root / name):
        return
    scratch = _new_scratch(root)
    scratch.mkdir(mode=0o700)
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(scratch, filter="data")
        for path in (*scratch.rglob("*"), scratch):
            path.chmod(path.stat().st_mode & ~OTHERS_WRITE)
        os.rename(scratch, root / name)
    except BaseException:
        _delete(scratch)
        raise


def _folders(root: Path, key: ArtifactKey) -> list[Path]:
    """The folders with artifacts of a key, valid or not; the newest first."""
    found = [root / key.folder] if (root / key.folder).exists() else []
    with suppress(OSError):
        states = [Path(e.path) for e in os.scandir(root) if e.name.startswith(f"{key.folder}.")]
        found += sorted(states, key=lambda folder: folder.stat().st_mtime_ns, reverse=True)
    return found


@contextmanager
def _locked(root: Path, key: ArtifactKey, on_wait: Callable[[], None] | None) -> Iterator[None]:
    """Hold the lock of ``key``. The system releases it when its holder dies, so no lock becomes stale."""
    lock = FileLock(str(root / _LOCKS / f"{key.folder}.lock"))
    with _writing(root):
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
    if (reason := why_untrusted(root)) is not None:
        raise _RootUnusableError(f"The artifact cache {root} {reason[0]}.", fix=reason[1])
    with _writing(root):
        for folder in (_LOCKS, _TMP):
            (root / folder).mkdir(mode=0o700, exist_ok=True)
        with suppress(Timeout):
            lock.acquire(timeout=0)
    if not lock.is_locked:
        if on_wait is not None:
            on_wait()
        with _writing(root):
            lock.acquire(poll_interval=0.02)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _writing(root: Path) -> Iterator[None]:
    """Turn every failure except a full disk into _RootUnusableError, for which there is a fallback."""
    try:
        yield
    except (OSError, NotImplementedError) as error:  # the latter: a file system without flock
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            raise
        message = f"The artifact cache {root} cannot be written ({error})."
        raise _RootUnusableError(message, fix="set OPWRIGHT_CACHE_DIR to a folder you may write") from error


@contextmanager
def _explaining_full_disk(root: Path, key: ArtifactKey) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        existing = next(folder for folder in (root, *root.parents) if folder.exists())
        free = shutil.disk_usage(existing).free / 2**20
        raise CacheError(
            f"{FULL_DISK}: the artifact {key.name!r} cannot be written to {root} ({error}). {free:,.1f} MiB are free.",
            fix="free some space there, or set OPWRIGHT_CACHE_DIR to a folder on another disk",
        ) from error


def _publish(scratch: Path, root: Path, key: ArtifactKey, read: ReadFiles | None) -> Path:
    """Give the finished build its manifest and its final name. Raises CacheError if it is empty."""
    manifest = scratch / _MANIFEST
    files = sorted(path for path in scratch.rglob("*") if path.is_file() and path != manifest)
    if not files:
        raise CacheError(f"The build of {key.name!r} ended without an error but wrote no file.")
    final = root / (key.folder if read is None else f"{key.folder}.{read.digest}")
    with _writing(root):
        content = {
            "schema": _SCHEMA,
            "name": key.name,
            "digest": key.digest,
            "parts": [_part(label, value) for label, value in key.parts],
            "files": [_file(path, scratch) for path in files],
            "read": (read or ReadFiles()).to_json(),
        }
        manifest.write_text(json.dumps(content) + "\n", encoding="utf-8")
        # Without this a crash of the machine could keep the rename and lose the contents.
        folders = [path for path in scratch.rglob("*") if path.is_dir()]
        for path in (*files, manifest, *folders, scratch):
            path.chmod(path.stat().st_mode & ~OTHERS_WRITE)  # compilers follow the umask
            _sync(path)
        _discard(root, final)  # it is damaged
        os.rename(scratch, final)
        _sync(root)
    return final


def _part(label: str, value: str) -> dict[str, object]:
    if len(value) <= _LONGEST_SHOWN:
        return {"label": label, "value": value}
    return {"label": label, "sha256": _sha256(_encode(value)), "length": len(value)}


def _file(path: Path, folder: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"path": str(path.relative_to(folder)), "size": len(data), "sha256": _sha256(data)}


def _verify(folder: Path, key: ArtifactKey) -> _Verified:
    """Check every file against the manifest. Raises if anything differs, or if there is anything else."""
    # Each stamp is taken before its file is read, so that a change in between is found by the next lookup.
    stamps = {name: _stamp(folder / name) for name in (".", *_contents(folder))}
    manifest = json.loads((folder / _MANIFEST).read_bytes())
    if manifest["schema"] != _SCHEMA or manifest["digest"] != key.digest or not manifest["files"]:
        raise ValueError(f"{folder} does not hold the artifact {key.folder}")
    listed = {record["path"]: record for record in manifest["files"]}
    present = {name for name in stamps if not (folder / name).is_dir()} - {_MANIFEST}
    if present != set(listed) or any(_file(folder / name, folder) != listed[name] for name in present):
        raise ValueError(f"{folder} is not what was built")
    return _Verified(stamps, ReadFiles.from_json(manifest["read"]))


def _contents(folder: Path) -> list[str]:
    """The names of everything below a folder. Raises ValueError for a link, and for what others could have written."""
    below = [] if folder.is_symlink() else sorted(folder.rglob("*"))
    for path in (folder, *below):
        if path.is_symlink() or why_untrusted(path) is not None:
            raise ValueError(f"{path} could be what another user has written")
    return [str(path.relative_to(folder)) for path in below]


def _stamp(path: Path) -> _Stamp:
    status = path.lstat()
    return status.st_ctime_ns, status.st_size, status.st_ino


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # every str has a digest, well-formed or not


def _sanitise(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).lstrip(".-")[:80] or "artifact"


def _host() -> str:
    """The scope of a process id: the host, and the PID namespace, as containers may share a host name."""
    namespace = ""
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return _sanitise(socket.gethostname() + namespace)


def _new_scratch(root: Path) -> Path:
    return root / _TMP / f"{os.getpid()}-{secrets.token_hex(4)}-{_host()}"


def _remove_leftovers(root: Path) -> None:
    """Remove the temporary folders of dead builds, as far as possible. Never raises."""
    with suppress(OSError):  # other processes may be removing them too
        for folder in (root / _TMP).iterdir():
            if _is_leftover(folder):
                _delete(folder)


def _is_leftover(folder: Path) -> bool:
    named = re.fullmatch(r"(\d{1,9})-[0-9a-f]{8}-(.+)", folder.name)
    try:
        if named is not None and named[2] == _host():
            os.kill(int(named[1]), 0)  # signal 0 only tests whether the process exists
            return False
        return time.time() - folder.stat().st_mtime > _DAY_S
    except ProcessLookupError:
        return True
    except OSError:  # the process is another user's, or the folder has just gone
        return False


def _discard(root: Path, folder: Path) -> None:
    """Remove an artifact. It is renamed first, so that no reader sees part of it."""
    with _writing(root):
        if os.path.lexists(folder):
            (root / _TMP).mkdir(mode=0o700, exist_ok=True)
            aside = _new_scratch(root)
            with suppress(FileNotFoundError):  # another process was faster
                os.rename(folder, aside)
            _delete(aside)


def _delete(path: Path) -> None:
    """Remove a file or a folder, as far as that is possible. Never raises."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


_private_roots: dict[int, Path] = {}  # by process id: a forked child must not share its parent's
_private_roots_lock = threading.Lock()


def _private_root(unusable: _RootUnusableError) -> Path:
    """This process's own cache folder, removed at exit. Warns when it is made.

    Raises ``unusable`` if it cannot be made either.
    """
    with _private_roots_lock:
        pid = os.getpid()
        if pid in _private_roots:
            return _private_roots[pid]
        try:
            folder = _private_roots[pid] = Path(tempfile.mkdtemp(prefix="opwright-cache-"))
        except OSError as error:
            raise unusable from error
        atexit.register(_delete_if_owner, folder, pid)
    warnings.warn(
        f"{unusable.message} Kernels are compiled into {folder} instead, and again in every process. "
        f"To keep them, {unusable.fix}.",
        CacheFallbackWarning,
        stacklevel=3,
    )
    return folder


def _delete_if_owner(folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        _delete(folder)
