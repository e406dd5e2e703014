"""Kernels in C++: a host function on ``torch::stable::Tensor``, built with the system's compiler.

Only headers of torch's stable ABI are needed, which compile in one to two seconds (the full ATen
headers take about twenty-five), and what is built runs on later torch versions unchanged.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import torch

from opwright.backends import stable_abi
from opwright.backends.base import Artifact, Backend, BuildTools, KernelSpec, Launch, as_launch
from opwright.cache import ArtifactKey
from opwright.contract.contract import Contract
from opwright.errors import CompileError, KernelError, KernelRefusedError
from opwright.machine import Machine
from opwright.results import Accepted, Probe, Refused

__all__ = ["CppBackend"]

_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared", "-Wall")
# torch.utils.cpp_extension knows these folders too, but looks for CUDA, and warns, when it is imported.
_TORCH = Path(torch.__file__).parent


class CppBackend(Backend):
    """One shared object a kernel. ``options`` are compiler flags, added after the standard ones."""

    name = "cpp"
    takes = frozenset({"file"})
    suffixes = (".cpp", ".cc", ".cxx")
    default_devices = ("cpu",)
    options = frozenset({"options"})

    def available(self, machine: Machine) -> Probe:
        if machine.cxx is None:
            return Refused("there is no C++ compiler", "install g++ (apt install g++), or set CXX")
        return Accepted(machine.cxx.version)

    def validate(self, spec: KernelSpec, contract: Contract) -> None:
        given = spec.options.get("options", ())
        if isinstance(given, str) or not all(isinstance(flag, str) for flag in given):
            raise KernelError(
                f"{contract.qualname}:{spec.name}: options={given!r} is not a list of compiler flags",
                fix="write one string a flag, as in options=['-DN=4', '-ffast-math']",
            )
        stable_abi.compare_declaration(spec, contract)

    def generate(self, spec: KernelSpec, contract: Contract) -> str:
        return stable_abi.binding_text(spec, contract, unique="<hash>")

    def compile(self, spec: KernelSpec, contract: Contract, tools: BuildTools) -> Artifact:
        assert isinstance(spec.source, Path)  # ``takes`` admits files only
        if tools.machine.cxx is None:
            raise KernelRefusedError(f"{contract.qualname}:{spec.name}: there is no C++ compiler", fix="install g++")
        key = _key(spec, contract, tools.machine)
        unique = stable_abi.unique_name(contract, key.digest)
        library = f"{contract.name}.so"

        def build(folder: Path) -> None:
            binding = folder / f"{spec.source.stem}.binding.cpp"  # type: ignore[union-attr]
            binding.write_text(stable_abi.binding_text(spec, contract, unique))
            shutil.copy(spec.source, folder)  # type: ignore[arg-type]
            assert tools.machine.cxx is not None  # refused above
            _run_compiler(
                [
                    tools.machine.cxx.path,
                    *_flags(spec),
                    str(binding),
                    "-o",
                    str(folder / library),
                    *_link_flags(),
                ],
                spec,
                contract,
            )

        folder = tools.cache.get_or_build(
            key,
            build,
            on_build=lambda: tools.notify(
                f"compiling {spec.source.name} for {contract.qualname} with {tools.machine.cxx.version}; "  # type: ignore[union-attr]
                "cached for next time"
            ),
            on_wait=lambda: tools.notify(f"waiting: another process compiles {spec.source.name}"),  # type: ignore[union-attr]
        )
        return Artifact(unique, file=folder / library)

    def load(self, artifact: Artifact, spec: KernelSpec, contract: Contract) -> Launch:
        assert artifact.file is not None  # compile always makes one
        return as_launch(stable_abi.load_shared_object(artifact.file, artifact.entry), contract)


def _key(spec: KernelSpec, contract: Contract, machine: Machine) -> ArtifactKey:
    """Everything that the shared object depends on."""
    assert isinstance(spec.source, Path)  # ``takes`` admits files only
    assert machine.cxx is not None  # refused by the caller
    headers = stable_abi.included_files(spec.source, _include_folders(spec))
    native = machine.cpu + machine.cpu_flags if any("native" in f for f in _flags(spec)) else ""
    return ArtifactKey(
        name=f"{contract.namespace}_{contract.name}.{spec.source.stem}",
        parts=(
            (
                "binding",
                stable_abi.binding_text(spec, contract, unique="").replace(str(spec.source), spec.source.name),
            ),
            ("source", spec.source.read_text()),
            *((f"header {h.name}", h.read_text(errors="replace")) for h in headers),
            ("flags", " ".join(f for f in _flags(spec) if not f.startswith("-I"))),
            ("compiler", f"{machine.cxx.path} {machine.cxx.version}"),
            ("torch", torch.__version__),
            ("cpu", native),
        ),
    )


def _flags(spec: KernelSpec) -> list[str]:
    assert isinstance(spec.source, Path)  # ``takes`` admits files only
    includes = [spec.source.parent, _TORCH / "include"]
    return [
        *_FLAGS,
        f"-DTORCH_TARGET_VERSION={stable_abi.TARGET_VERSION}",
        *(f"-I{folder}" for folder in includes),
        *spec.options.get("options", ()),
    ]


def _include_folders(spec: KernelSpec) -> list[Path]:
    """Folders that the author added; torch's own are covered by its version."""
    return [Path(flag[2:]) for flag in spec.options.get("options", ()) if flag.startswith("-I")]


def _link_flags() -> list[str]:
    return [f"-L{_TORCH / 'lib'}", "-ltorch", "-ltorch_cpu"]


def _run_compiler(command: list[str], spec: KernelSpec, contract: Contract) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if "No space left on device" in done.stderr:
        raise OSError(28, "No space left on device")  # the cache says where, and what to do
    assert isinstance(spec.source, Path)  # ``takes`` admits files only
    raise CompileError(
        f"{contract.qualname}: {spec.source.name} does not compile\n{_first_errors(done.stderr)}",
        log=done.stderr,
        fix="the whole output is in this exception's .log",
    )


def _first_errors(log: str, limit: int = 3) -> str:
    """The first errors with the source line and caret that the compiler printed below each."""
    blocks = re.split(r"(?m)^(?=\S+?:\d+(?::\d+)?: (?:fatal )?(?:error|warning|note):)", log)
    errors = [b for b in blocks if re.match(r"\S+?:\d+(?::\d+)?: (?:fatal )?error:", b)]
    if not errors:
        return log.strip()[-2000:]
    shown = ["\n".join(b.rstrip().splitlines()[:4]) for b in errors[:limit]]
    more = f"\n… and {len(errors) - limit} more" if len(errors) > limit else ""
    return "\n".join(shown) + more
