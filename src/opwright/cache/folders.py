"""Folders of the cache: locks, temporary folders and what dead builds left of them, and a folder for want of a root."""

from __future__ import annotations

import atexit
import errno
import os
import re
import secrets
import shutil
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from opwright.errors import CacheError
from opwright.file_trust import why_untrusted

__all__ = [
    "FULL_DISK", "CacheFallbackWarning", "RootUnusableError", "delete", "discard", "explaining_full_disk", "locked",
    "new_scratch", "private_root", "remove_leftovers", "sync", "writing",
]  # fmt: skip

# How the message of such an error begins.
FULL_DISK = "The disk is full"

_LOCKS, _TMP = ".locks", ".tmp"  # an artifact's folder never begins with a dot
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DAY_S = 24 * 60 * 60


class CacheFallbackWarning(UserWarning):
    """The cache's folder cannot be written or trusted; a temporary one that dies with the process is used."""


class RootUnusableError(CacheError):
    """The root cannot be created, written, locked or trusted, for a reason other than a full disk."""


@contextmanager
def locked(root: Path, name: str, on_wait: Callable[[], None] | None) -> Iterator[None]:
    """Hold the lock of an artifact. The system releases it when its holder dies, so no lock becomes stale."""
    lock = FileLock(str(root / _LOCKS / f"{name}.lock"))
    with writing(root):
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
    if (reason := why_untrusted(root)) is not None:
        raise RootUnusableError(f"The artifact cache {root} {reason[0]}.", fix=reason[1])
    with writing(root):
        for folder in (_LOCKS, _TMP):
            (root / folder).mkdir(mode=0o700, exist_ok=True)
        with suppress(Timeout):
            lock.acquire(timeout=0)
    if not lock.is_locked:
        if on_wait is not None:
            on_wait()
        with writing(root):
            lock.acquire(poll_interval=0.02)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def writing(root: Path) -> Iterator[None]:
    """Turn every failure except a full disk into RootUnusableError, for which there is a fallback."""
    try:
        yield
    except (OSError, NotImplementedError) as error:  # the latter: a file system without flock
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            raise
        message = f"The artifact cache {root} cannot be written ({error})."
        raise RootUnusableError(message, fix="set OPWRIGHT_CACHE_DIR to a folder you may write") from error


@contextmanager
def explaining_full_disk(root: Path, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        existing = next(folder for folder in (root, *root.parents) if folder.exists())
        free = shutil.disk_usage(existing).free / 2**20
        raise CacheError(
            f"{FULL_DISK}: the artifact {name!r} cannot be written to {root} ({error}). {free:,.1f} MiB are free.",
            fix="free some space there, or set OPWRIGHT_CACHE_DIR to a folder on another disk",
        ) from error


def _host() -> str:
    """The scope of a process id: the host, and the PID namespace, as containers may share a host name."""
    namespace = ""
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", socket.gethostname() + namespace)[:80]


def new_scratch(root: Path) -> Path:
    return root / _TMP / f"{os.getpid()}-{secrets.token_hex(4)}-{_host()}"


def remove_leftovers(root: Path) -> None:
    """Remove the temporary folders of dead builds, as far as possible. Never raises."""
    with suppress(OSError):  # other processes may be removing them too
        for folder in (root / _TMP).iterdir():
            if _is_leftover(folder):
                delete(folder)


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


def discard(root: Path, folder: Path) -> None:
    """Remove an artifact. It is renamed first, so that no reader sees part of it."""
    with writing(root):
        if os.path.lexists(folder):
            (root / _TMP).mkdir(mode=0o700, exist_ok=True)
            aside = new_scratch(root)
            with suppress(FileNotFoundError):  # another process was faster
                os.rename(folder, aside)
            delete(aside)


def delete(path: Path) -> None:
    """Remove a file or a folder, as far as that is possible. Never raises."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)


_private_roots: dict[int, Path] = {}  # by process id: a forked child must not share its parent's
_private_roots_lock = threading.Lock()


def private_root(unusable: RootUnusableError) -> Path:
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
        delete(folder)
