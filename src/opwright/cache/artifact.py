"""One artifact: its key, its manifest, and whether its files are what was built."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from opwright.cache.folders import discard, sync, writing
from opwright.errors import CacheError
from opwright.file_trust import OTHERS_WRITE, why_untrusted
from opwright.read_files import ReadFiles

__all__ = ["MANIFEST", "ArtifactKey", "Verified", "folders_of", "publish", "verified"]

MANIFEST = "manifest.json"
_SCHEMA = "opwright.artifact/2"
_LONGEST_SHOWN = 200  # longer parts of a key (whole sources) are stored in the manifest as a hash

# What folders hold, by the time of their last change; and for how many nanoseconds after that one is not remembered.
_LISTED: dict[Path, tuple[int, tuple[str, ...]]] = {}
_LATELY = 2_000_000_000

_Stamp = tuple[int, int, int]  # st_ctime_ns, st_size, st_ino: a file with the same stamp is unchanged, its mode too


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
class Verified:
    """An artifact whose files are what was built, while their stamps stay the same; and what its build has read."""

    stamps: dict[str, _Stamp]
    read: ReadFiles

    def are_unchanged(self, folder: Path) -> bool:
        """Whether its files have the same stamps. Raises OSError if one of them is gone."""
        return all(_stamp(folder / name) == stamp for name, stamp in self.stamps.items())


def folders_of(root: Path, key: ArtifactKey) -> list[Path]:
    """The folders with artifacts of a key, valid or not; the newest first."""
    name = key.folder
    found, start = [root / name] if (root / name).exists() else [], f"{name}."
    with suppress(OSError):
        states = [root / other for other in _names_in(root) if other.startswith(start)]
        found += sorted(states, key=lambda folder: folder.stat().st_mtime_ns, reverse=True)
    return found


def _names_in(root: Path) -> tuple[str, ...]:
    """The names in a folder, of which there may be thousands, listed again once it has changed. One that has changed
    lately is listed each time, as a file system's clock may be coarse."""
    changed = root.stat().st_mtime_ns
    known, names = _LISTED.get(root, (0, ()))
    if known != changed or time.time_ns() - changed < _LATELY:
        names = tuple(os.listdir(root))
        _LISTED[root] = (changed, names) if time.time_ns() - changed >= _LATELY else (0, ())
    return names


def publish(scratch: Path, root: Path, key: ArtifactKey, read: ReadFiles | None) -> Path:
    """Give the finished build its manifest and its final name. Raises CacheError if it is empty."""
    manifest = scratch / MANIFEST
    files = sorted(path for path in scratch.rglob("*") if path.is_file() and path != manifest)
    if not files:
        raise CacheError(f"The build of {key.name!r} ended without an error but wrote no file.")
    final = root / (key.folder if read is None else f"{key.folder}.{read.digest}")
    with writing(root):
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
            sync(path)
        discard(root, final)  # it is damaged
        os.rename(scratch, final)
        sync(root)
    return final


def _part(label: str, value: str) -> dict[str, object]:
    if len(value) <= _LONGEST_SHOWN:
        return {"label": label, "value": value}
    return {"label": label, "sha256": _sha256(_encode(value)), "length": len(value)}


def _file(path: Path, folder: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"path": str(path.relative_to(folder)), "size": len(data), "sha256": _sha256(data)}


def verified(folder: Path, key: ArtifactKey) -> Verified:
    """Check every file against the manifest. Raises if anything differs, or if there is anything else."""
    # Each stamp is taken before its file is read, so that a change in between is found by the next lookup.
    stamps = {name: _stamp(folder / name) for name in (".", *_contents(folder))}
    manifest = json.loads((folder / MANIFEST).read_bytes())
    if manifest["schema"] != _SCHEMA or manifest["digest"] != key.digest or not manifest["files"]:
        raise ValueError(f"{folder} does not hold the artifact {key.folder}")
    listed = {record["path"]: record for record in manifest["files"]}
    present = {name for name in stamps if not (folder / name).is_dir()} - {MANIFEST}
    if present != set(listed) or any(_file(folder / name, folder) != listed[name] for name in present):
        raise ValueError(f"{folder} is not what was built")
    return Verified(stamps, ReadFiles.from_json(manifest["read"]))


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


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # every str has a digest, well-formed or not


def _sanitise(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).lstrip(".-")[:80] or "artifact"
