"""Builds native kernels for other machines: C++ for a baseline processor, CUDA for the GPUs in use; without paths."""

from __future__ import annotations

import dataclasses
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from opwright.backends.base import KernelSpec
from opwright.backends.build_tools import BuildTools
from opwright.backends.cuda.backend import CudaBackend
from opwright.backends.native import host_function
from opwright.backends.native.abi import INCLUDE
from opwright.backends.native.binding import native_schema
from opwright.backends.native.cpp import CppBackend
from opwright.contract.contract import Contract
from opwright.errors import KernelError

__all__ = ["BASELINES", "Native", "baseline", "build_native"]

_LIBRARY = "opwright_shipped"
# The default -march: a processor of the last ten years.
BASELINES = {"x86_64": "x86-64-v3", "aarch64": "armv8-a"}


@dataclass(frozen=True)
class Native:
    """A library with one kernel, which registers ``opwright_shipped::<symbol>`` with ``schema``."""

    file: Path
    name: str
    symbol: str
    schema: str


def baseline() -> str:
    """The default for ``-march`` on this kind of machine."""
    return BASELINES.get(platform.machine(), "native")


def build_native(contract: Contract, spec: KernelSpec, tools: BuildTools, march: str) -> Native:
    """Build a kernel to be shipped, or take it from the cache.

    Raises:
        KernelRefusedError: there is no compiler for it.
        KernelError: its own options select this machine's processor.
    """
    if any("native" in option for option in spec.options.get("options", ())):
        raise KernelError(
            f"{contract.qualname}:{spec.name} selects this machine's processor with {list(spec.options['options'])}",
            fix="leave -march=native out of options: opwright adds it if a kernel is built for this machine",
        )
    artifact = host_function.build(spec, contract, tools, _toolchain(contract, spec, tools, march))
    assert artifact.file is not None  # building always makes one
    name = re.sub(r"[^\w.-]", "_", f"{contract.namespace}_{contract.name}.{spec.name}.so")
    return Native(artifact.file, name, artifact.entry, native_schema(contract))


def _toolchain(contract: Contract, spec: KernelSpec, tools: BuildTools, march: str) -> host_function.Toolchain:
    machine = tools.machine
    if spec.backend == "cpp":
        toolchain = CppBackend().toolchain(spec, contract, machine, march)
        flags = (*toolchain.flags, *_without_paths(spec, tools), "-Wl,-s")
        return dataclasses.replace(toolchain, flags=flags, native="", library=_LIBRARY, is_shipped=True)
    everywhere = dataclasses.replace(machine, gpus=())
    toolchain = CudaBackend().toolchain(spec, contract, everywhere)
    hidden = [part for flag in _without_paths(spec, tools) for part in ("-Xcompiler", flag)]
    flags = tuple(f for f in toolchain.flags if f != "-lineinfo")  # it names files
    return dataclasses.replace(toolchain, flags=(*flags, *hidden), library=_LIBRARY, is_shipped=True)


def _without_paths(spec: KernelSpec, tools: BuildTools) -> list[str]:
    """Flags that keep this machine's folders out of the library, in which error checks would name files."""
    assert isinstance(spec.source, Path)  # native kernels are files
    folders = [(spec.source.parent, "source"), (host_function.TORCH, "torch"), (tools.machine.cache_dir, "binding")]
    folders.append((INCLUDE, "include"))
    return [f"-ffile-prefix-map={folder}={name}" for folder, name in folders]
