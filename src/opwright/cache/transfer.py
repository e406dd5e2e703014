"""Artifacts as bytes, for the caches of other machines."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

from opwright.cache.folders import delete, new_scratch
from opwright.file_trust import OTHERS_WRITE

__all__ = ["pack", "unpack"]


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
    scratch = new_scratch(root)
    scratch.mkdir(mode=0o700)
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            _extract(archive, scratch)
        for path in (*scratch.rglob("*"), scratch):
            path.chmod(path.stat().st_mode & ~OTHERS_WRITE)
        os.rename(scratch, root / name)
    except BaseException:
        delete(scratch)
        raise


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Its files, none of them outside the folder. Python has filters from 3.11.4 on."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
        return
    for member in archive:
        parts = Path(member.name).parts
        if not (member.isfile() or member.isdir()) or os.path.isabs(member.name) or ".." in parts:
            raise OSError(f"an artifact must have files and folders of its own only, got {member.name}")
        archive.extract(member, folder)
