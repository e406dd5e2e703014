"""Compiles a source with a host function on ``torch::stable::Tensor`` to a shared object, for C++ and CUDA."""

from __future__ import annotations

import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from opwright.backends.base import Artifact, KernelSpec
from opwright.backends.build_tools import BuildTools
from opwright.backends.compiler import run_compiler
from opwright.backends.compiler_inputs import BuildWatch, key_parts
from opwright.backends.native import stable_abi
from opwright.backends.native.tensor_access import python_headers
from opwright.cache import ArtifactKey
from opwright.contract.contract import Contract
from opwright.errors import KernelError
from opwright.machine import Compiler
from opwright.read_files import ReadFiles

__all__ = ["TORCH", "Toolchain", "build", "check_options"]

# torch.utils.cpp_extension has these folders too, but searches for CUDA, and warns, when it is imported.
TORCH = Path(torch.__file__).parent
_NAME = "operator.txt"  # the private operator that the shared object registers


@dataclass(frozen=True)
class Toolchain:
    """A compiler with its standard flags. ``native`` is the CPU, on which ``-march=native`` depends; ``binding`` is the
    template of the text that registers the kernel; ``toolkit`` is the folder of headers and libraries that came with
    the compiler, beyond those of the system."""

    compiler: Compiler
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    suffix: str
    native: str = ""
    binding: Path = stable_abi.BINDING
    toolkit: Path | None = None


def check_options(spec: KernelSpec, contract: Contract) -> None:
    """Refuse options that are not a list of compiler flags."""
    flags = spec.options.get("options", ())
    if isinstance(flags, str) or not all(isinstance(flag, str) for flag in flags):
        raise KernelError(
            f"{contract.qualname}:{spec.name}: options={flags!r} is not a list of compiler flags",
            fix="write one string per flag, as in options=['-DN=4', '-ffast-math']",
        )


def build(spec: KernelSpec, contract: Contract, tools: BuildTools, toolchain: Toolchain) -> Artifact:
    """Compile one kernel's source with its binding, or take it from the cache.

    Raises:
        CompileError: with the first errors, their source lines and carets.
    """
    source = _source(spec)
    key = _key(spec, contract, toolchain)
    library = f"{contract.name}.so"

    def make(folder: Path) -> ReadFiles:
        # Builds of one key differ in the headers that they read, which the compiler tells only afterwards.
        unique = stable_abi.unique_name(contract, key.digest + secrets.token_hex(8))
        (folder / _NAME).write_text(unique)
        binding = folder / f"{source.stem}.binding{toolchain.suffix}"
        binding.write_text(stable_abi.binding_text(spec, contract, unique, toolchain.binding))
        shutil.copy(source, folder)
        watch = BuildWatch(toolchain.compiler)
        flags, libraries = _flags(spec, toolchain), [f"-L{TORCH / 'lib'}", *toolchain.libraries]
        command = [toolchain.compiler.path, *flags, *watch.compile_flags, str(binding), "-o", str(folder / library)]
        command += [*libraries, *watch.link_flags]
        run_compiler(command, f"{contract.qualname}: {source.name}", environment=watch.environment)
        installed = [TORCH, *filter(None, [python_headers(), toolchain.toolkit])]
        return watch.read_files([*flags, *libraries], base=source.parent, built_in=folder, installed=installed)

    folder = tools.cache.get_or_build(
        key,
        make,
        on_build=lambda: tools.notify(
            f"compiling {source.name} for {contract.qualname} with {toolchain.compiler.version}; cached for next time"
        ),
        on_wait=lambda: tools.notify(f"waiting: another process compiles {source.name}"),
    )
    return Artifact((folder / _NAME).read_text(), file=folder / library)


def _source(spec: KernelSpec) -> Path:
    assert isinstance(spec.source, Path)  # the backends that build take files only
    return spec.source


def _flags(spec: KernelSpec, toolchain: Toolchain) -> list[str]:
    return [
        *toolchain.flags,
        f"-DTORCH_TARGET_VERSION={stable_abi.TARGET_VERSION}",
        f"-I{_source(spec).parent}",
        f"-I{TORCH / 'include'}",
        f"-I{stable_abi.INCLUDE}",
        *_python_flags(),
        *spec.options.get("options", ()),
    ]


def _python_flags() -> list[str]:
    """Flags for calls without the dispatcher, which need Python's headers; empty if they are not installed."""
    headers = python_headers()
    return [] if headers is None else ["-DOPWRIGHT_PYTHON", f"-I{stable_abi.TEMPLATES}", f"-I{headers}"]


def _key(spec: KernelSpec, contract: Contract, toolchain: Toolchain) -> ArtifactKey:
    """What the shared object depends on besides the headers and libraries that its build reads."""
    source, flags = _source(spec), _flags(spec, toolchain)
    binding = stable_abi.binding_text(spec, contract, "", toolchain.binding)
    return ArtifactKey(
        name=f"{contract.namespace}_{contract.name}.{source.stem}",
        parts=(
            ("binding", binding.replace(str(source), source.name)),
            ("source", source.read_text()),
            ("flags", " ".join(f for f in flags if not f.startswith("-I"))),
            *key_parts(toolchain.compiler, spec.options.get("options", ())),
            ("torch", torch.__version__),
            ("python", str(sys.implementation.cache_tag)),
            ("cpu", toolchain.native if any("native" in f for f in flags) else ""),
        ),
        base=source.parent,
    )
