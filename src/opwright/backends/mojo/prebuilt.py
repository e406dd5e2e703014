"""PTX that is shipped beside its Mojo source, so that a GPU machine without Mojo can run the kernel.

A folder holds one file for each set of parameters and architecture, and ``<source>.<entry>.json``, which lists what
each was built from. A file whose source has changed since is not used.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from opwright.backends.mojo.compiler import MojoUnit
from opwright.errors import KernelError

__all__ = ["Prebuilt", "Recipe", "find", "holds_ptx", "manifest_of", "parameter_sets", "read_manifest", "write"]

_SCHEMA = "opwright.mojo-ptx/1"


@dataclass(frozen=True)
class Recipe:
    """One set of compile-time parameters, as Mojo writes them, for one architecture."""

    parameters: Mapping[str, str]
    arch: str


@dataclass(frozen=True)
class Prebuilt:
    """A PTX file, and the digest of the texts that it was built from."""

    file: str
    arch: str
    parameters: dict[str, str]
    sources: str


@functools.cache
def manifest_of(source: Path, entry: str, folder: str) -> Path:
    """The path of a kernel's manifest."""
    return source.parent / folder / f"{source.stem}.{entry}.json"


def read_manifest(manifest: Path) -> list[Prebuilt]:
    """The entries of a manifest; empty if there is no manifest.

    Raises:
        KernelError: the manifest cannot be read.
    """
    if not manifest.is_file():
        return []
    try:
        content = json.loads(manifest.read_text())
        if content["schema"] != _SCHEMA:
            raise ValueError(content["schema"])
        return [Prebuilt(**record) for record in content["files"]]
    except (ValueError, LookupError, TypeError) as error:
        raise KernelError(
            f"{manifest} is not a list of prebuilt PTX ({error})", fix="write it again with `opwright prebuild`"
        ) from None


def holds_ptx(manifest: Path) -> bool:
    """Whether a folder lists PTX of a kernel.

    Raises:
        KernelError: the manifest cannot be read.
    """
    return bool(parameter_sets(manifest))


def parameter_sets(manifest: Path) -> tuple[dict[str, str], ...]:
    """The compile-time parameters of all PTX in a manifest. Calls read it, so it is read again only when the
    file has changed.

    Raises:
        KernelError: the manifest cannot be read.
    """
    try:
        file = os.stat(manifest)
    except OSError:
        return ()
    return _read_parameter_sets(manifest, file.st_ino, file.st_mtime_ns, file.st_size)


@functools.lru_cache(maxsize=256)
def _read_parameter_sets(manifest: Path, *_version: int) -> tuple[dict[str, str], ...]:
    return tuple(made.parameters for made in read_manifest(manifest))


def find(manifest: Path, unit: MojoUnit) -> tuple[Path, str] | None:
    """The PTX for a unit and its architecture: the unit's own, else the newest one that its GPU can run."""
    made = [p for p in read_manifest(manifest) if p.sources == unit.sources_digest]
    runs = [p for p in made if _number(p.arch) <= _number(unit.target) and (manifest.parent / p.file).is_file()]
    best = max(runs, key=lambda p: _number(p.arch), default=None)
    return (manifest.parent / best.file, best.arch) if best else None


def write(manifest: Path, made: Iterable[tuple[Recipe, MojoUnit, str]], compiler: str) -> list[Path]:
    """Write the PTX texts and their manifest, replacing those of earlier builds. Returns the files."""
    manifest.parent.mkdir(parents=True, exist_ok=True)
    for earlier in read_manifest(manifest):
        (manifest.parent / earlier.file).unlink(missing_ok=True)
    records = []
    for recipe, unit, ptx in made:
        set_of = ".".join(re.sub(r"^DType\.", "", v) for v in recipe.parameters.values())
        name = f"{manifest.stem}.{set_of}.{recipe.arch}.ptx"
        (manifest.parent / name).write_text(ptx)
        records.append(Prebuilt(name, recipe.arch, dict(recipe.parameters), unit.sources_digest))
    content = {"schema": _SCHEMA, "compiler": compiler, "files": [asdict(r) for r in records]}
    manifest.write_text(json.dumps(content, indent=1) + "\n")
    return [manifest, *(manifest.parent / r.file for r in records)]


def _number(arch: str) -> int:
    """``sm_90`` → 90. An architecture-specific target (``sm_90a``) counts as newer than all: no other chip runs it."""
    found = re.fullmatch(r"sm_(\d+)", arch)
    return int(found[1]) if found else 10**6
