"""Builds native kernels for other machines: C++ for a baseline processor, CUDA for the GPUs in use; without paths."""

from __future__ import annotations

import dataclasses
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
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

__all__ = ["BASELINES", "Native", "NativeBuilds", "baseline"]

_LIBRARY = "opwright_shipped"
# The default -march: a processor of the last ten years.
BASELINES = {"x86_64": "x86-64-v3", "aarch64": "armv8-a"}


@dataclass(frozen=True)
class Native:
    """A kernel in a library, which registers ``opwright_shipped::<symbol>`` with ``schema``; other kernels of the same
    source may be in it."""

    file: Path
    name: str
    symbol: str
    schema: str


def baseline() -> str:
    """The default for ``-march`` on this kind of machine."""
    return BASELINES.get(platform.machine(), "native")


@dataclass
class NativeBuilds:
    """The libraries of one package. Their operators have other names in each build, so a kernel that is in one of them
    already is not built again, whatever has changed since."""

    tools: BuildTools
    march: str
    _libraries: list[Path] = field(default_factory=list)

    def build(self, contract: Contract, spec: KernelSpec, others: Sequence[host_function.Member]) -> Native:
        """Build a kernel to be shipped, or take it from the cache.

        Args:
            others: shipped kernels that are built with it, as they are in the same source.

        Raises:
            KernelRefusedError: there is no compiler for it.
            KernelError: its own options select this machine's processor.
        """
        if any("native" in option for option in spec.options.get("options", ())):
            options = list(spec.options["options"])
            raise KernelError(
                f"{contract.qualname}:{spec.name} selects this machine's processor with {options}",
                fix="leave -march=native out of options: opwright adds it if a kernel is built for this machine",
            )
        label = host_function.label_of((spec, contract))
        library = next((file for file in self._libraries if label in host_function.operators_in(file)), None)
        if library is None:
            toolchain = _toolchain(contract, spec, self.tools, self.march)
            library = host_function.build(spec, contract, self.tools, toolchain, others).file
            assert library is not None  # building always makes one
            self._libraries.append(library)
        return Native(library, _file_name(library), host_function.operators_in(library)[label], native_schema(contract))


def _file_name(library: Path) -> str:
    """After the first of its kernels: ``my_ops_sin.cpp.so``, or ``my_ops_sin.cpp_and_2_more.so``."""
    first, *more = host_function.operators_in(library)
    several = f"_and_{len(more)}_more" if more else ""
    return re.sub(r"[^\w.-]", "_", first.replace("::", "_", 1).replace(":", ".", 1)) + f"{several}.so"


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
