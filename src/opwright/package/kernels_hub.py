"""The layout that Hugging Face's ``kernels`` loads: a folder for each build, named after what it runs on."""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from opwright.machine import Machine
from opwright.package.kernels import ShippedKernel

__all__ = ["variants", "write_layout"]

# torch's stable ABI that libraries are built for (see ``TARGET_VERSION``).
_STABLE = "torch-stable-abi210"


def variants(shipped: Sequence[ShippedKernel], machine: Machine) -> list[str]:
    """The names of the builds, as ``kernels`` compares them with torch and the machine.

    Without libraries, a build is for any torch. With those on torch's stable ABI, it is for this one and later ones;
    with those on ATen, for this release.
    """
    native = [k for k in shipped if k.library is not None]
    devices = {device for k in shipped for device in k.spec.devices if device in ("cpu", "cuda")} | {"cpu"}
    if not native:
        return [f"torch-{device}" for device in sorted(devices)]
    major, minor = torch.__version__.split(".")[:2]
    of_torch = f"torch{major}{minor}-cxx11" if any(k.holds_for_one_torch for k in native) else _STABLE
    found = [f"{of_torch}-cpu-{platform.machine()}-linux"]
    cuda = _cuda_version(machine)
    if "cuda" in devices and cuda:
        found.append(f"{of_torch}-cu{cuda.replace('.', '')}-{platform.machine()}-linux")
    return found


def _cuda_version(machine: Machine) -> str:
    """Of the toolkit that built CUDA's libraries, else of torch."""
    found = re.search(r"(\d+\.\d+)", machine.nvcc.version) if machine.nvcc is not None else None
    return found[1] if found is not None else (machine.torch_cuda or "")


def write_layout(
    package: Path, out: Path, version: str, licence: str, shipped: Sequence[ShippedKernel], machine: Machine
) -> list[Path]:
    """Write a package's folder as builds into ``out/build``.

    The package is imported by its own name: ``id`` is the name that ``kernels`` gives a module, and the package's
    imports use it.
    """
    shutil.rmtree(out, ignore_errors=True)
    written = []
    for variant in variants(shipped, machine):
        folder = out / "build" / variant
        shutil.copytree(package, folder, ignore=shutil.ignore_patterns("__pycache__"))
        backend = "cuda" if re.search(r"-cu(?:da|\d+)", variant) else "cpu"
        metadata = {
            "id": package.name,
            "name": package.name.lower().replace("_", "-"),
            "version": int(re.match(r"\d+", version.partition("!")[2] or version)[0]),  # type: ignore[index]
            "license": licence or "other",
            "python-depends": [],
            "backend": {"type": backend},
        }
        (folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
        written.append(folder)
    return written
