"""The properties of this machine, as one frozen record that is made once and passed in.

Environment variables that it reads: ``CXX``, ``CUDACXX``, ``MOJO``, ``CUDA_HOME``, ``CUDA_PATH``,
``OPWRIGHT_CACHE_DIR`` and ``OPWRIGHT_SUPPLIER``.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.processor import processor
from opwright.target import engines_here

__all__ = [
    "CORES", "Compiler", "Gpu", "Machine", "ask_compilers", "cache_dir", "own_cores", "this_machine",
]  # fmt: skip

# The variable with the number of cores that a cluster has given to a process, which runs others beside it.
CORES = "OPWRIGHT_CORES"


@dataclass(frozen=True)
class Compiler:
    """A C++, CUDA or Mojo compiler: its path, and its version text (part of every artifact's key)."""

    path: str
    version: str


@dataclass(frozen=True)
class Gpu:
    """One CUDA device. ``memory_bytes`` is its total memory."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int

    @property
    def arch(self) -> str:
        """The compiler's name of the architecture, such as ``sm_90``."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


@dataclass(frozen=True)
class Machine:
    """The properties that determine what can run here. Tests make their own, to test rules without hardware.

    ``mojo_lacks`` names the packages with Mojo's modules for GPUs that are not installed; ``max`` is MAX's version;
    ``cc``: whether there is a command of that name, with which Mojo links libraries for the CPU;
    ``supplier`` is the socket of what brings artifacts that other machines have built.
    """

    system: str
    python: str
    cpu: str
    cpu_flags: str
    cores: int
    torch: str
    torch_cuda: str | None
    gpus: tuple[Gpu, ...]
    triton: str | None
    cxx: Compiler | None
    nvcc: Compiler | None
    cache_dir: Path
    mojo: Compiler | None = None
    mojo_lacks: tuple[str, ...] = ()
    max: str | None = None
    cc: bool = True
    supplier: Path | None = None

    @property
    def has_gpu(self) -> bool:
        return bool(self.gpus)

    def to_json(self) -> dict[str, Any]:
        """The record for reports, without paths and CPU flags; with the engines that variables switch on."""
        record = dataclasses.asdict(self) | {"engines": [str(engine) for engine in engines_here()]}
        del record["cache_dir"], record["cpu_flags"], record["supplier"]
        for compiler in ("cxx", "nvcc", "mojo"):
            if record[compiler] is not None:
                record[compiler] = record[compiler]["version"]
        return record


def own_cores() -> int:
    """Those that this process may keep busy: all that the system lets it use, or the fewer that a cluster has given."""
    given = os.environ.get(CORES, "")
    return min(_cores(), int(given)) if given.isdecimal() and int(given) else _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def this_machine() -> Machine:
    """Detect the machine, once per process. Imports torch."""
    import torch

    cpu = processor()
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        cpu=cpu.name,
        cpu_flags=cpu.flags,
        cores=_cores(),
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        gpus=_gpus(),
        triton=_installed_version("triton"),
        **_compilers(),
        cache_dir=cache_dir(),
        mojo_lacks=tuple(name for name in ("max-core", "max-mojo-libs") if _installed_version(name) is None),
        max=_installed_version("max"),
        cc=shutil.which("cc") is not None,
        supplier=Path(socket) if (socket := os.environ.get("OPWRIGHT_SUPPLIER")) else None,
    )


def ask_compilers() -> None:
    """Ask the compilers for their versions, so that forks of this process need not."""
    _compilers()


def _compilers() -> dict[str, Compiler | None]:
    # pip installs Mojo beside Python, which is not on the PATH unless the environment is activated.
    beside_python = str(Path(sys.executable).parent / "mojo")
    return {
        "cxx": _first_compiler(os.environ.get("CXX"), "g++", "clang++", "c++"),
        "nvcc": _first_compiler(os.environ.get("CUDACXX"), "nvcc", *_toolkit_nvcc()),
        "mojo": _first_compiler(os.environ.get("MOJO"), "mojo", beside_python),
    }


def _gpus() -> tuple[Gpu, ...]:
    import torch

    if not torch.cuda.is_available():
        return ()
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return tuple(Gpu(p.name, (p.major, p.minor), p.total_memory) for p in found)


def _installed_version(distribution: str) -> str | None:
    from importlib import metadata  # slow, and a client of the daemon does not need it

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _first_compiler(*candidates: str | None) -> Compiler | None:
    """The first command that exists and prints its version."""
    for candidate in candidates:
        path = shutil.which(candidate) if candidate else None
        if path is None:
            continue
        try:
            found = os.stat(path)
            printed = _printed_version(path, found.st_mtime_ns, found.st_size)
        except (OSError, subprocess.SubprocessError):
            continue  # a compiler that cannot print its version cannot build either
        if printed.strip():
            return Compiler(path, _version_line(printed))
    return None


@functools.cache
def _printed_version(path: str, changed_ns: int, size: int) -> str:
    """What a command prints as its version; asked again only if its file has changed since."""
    return subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout


def _version_line(text: str) -> str:
    """The version in a compiler's output: g++ and clang print it first, nvcc after its copyright."""
    release = re.search(r"release [\d.]+, V([\d.]+)", text)
    return f"nvcc {release[1]}" if release else text.strip().splitlines()[0].strip()


def _toolkit_nvcc() -> list[str]:
    folders = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return [str(Path(folder) / "bin" / "nvcc") for folder in folders if folder]


def cache_dir() -> Path:
    """The folder of all caches: OPWRIGHT_CACHE_DIR, or the user's."""
    import platformdirs

    chosen = os.environ.get("OPWRIGHT_CACHE_DIR")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("opwright"))
