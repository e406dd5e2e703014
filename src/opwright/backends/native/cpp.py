"""Kernels in C++: a host function on ``torch::stable::Tensor``, built with the system's compiler.

Only headers of torch's stable ABI are needed, which compile in one to two seconds (the full ATen
headers take about twenty-five), and the result runs on later torch versions unchanged.

A kernel registers a private operator, ``opwright_kernels::<name>_<hash>``. The hash covers everything that it was
built from, so an edited source never meets its old binary in one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from opwright.backends.base import Artifact, Backend, KernelSpec, Launch
from opwright.backends.build_tools import BuildTools
from opwright.backends.check_hooks import CheckHooks
from opwright.backends.instrumented import address_sanitizer
from opwright.backends.native import host_function
from opwright.backends.native.abi import ATEN, abi_of
from opwright.backends.native.binding import binding_text
from opwright.backends.native.host_call import load_host_function
from opwright.contract.contract import Contract
from opwright.errors import KernelRefusedError
from opwright.machine import Machine
from opwright.results import Accepted, Probe, Refused
from opwright.results.outcomes import Instrumented

__all__ = ["CppBackend"]

_FLAGS = ("-O3", "-fopenmp", "-fPIC", "-shared", "-Wall")


class _CppHooks(CheckHooks):
    computes_itself = True

    def instrumented(self, machine: Machine) -> Instrumented | Refused:
        return address_sanitizer(machine) if self.target.device == "cpu" else super().instrumented(machine)


class CppBackend(Backend):
    """One shared object per kernel. ``options`` are compiler flags, added after the standard ones."""

    name = "cpp"
    mutates = True
    takes = frozenset({"file"})
    suffixes = (".cpp", ".cc", ".cxx")
    default_devices = ("cpu",)
    options = frozenset({"options", "abi"})
    check_hooks = _CppHooks

    def available(self, machine: Machine) -> Probe:
        if machine.cxx is None:
            return Refused("there is no C++ compiler", "install g++ (apt install g++), or set CXX")
        return Accepted(machine.cxx.version)

    def validate(self, spec: KernelSpec, contract: Contract) -> None:
        host_function.validate(spec, contract)

    def files(self, spec: KernelSpec) -> Iterator[Path]:
        assert isinstance(spec.source, Path)  # the backend takes files only
        return host_function.files(spec.source)

    def generate(self, spec: KernelSpec, contract: Contract) -> str:
        return binding_text(spec, contract, unique="<hash>")

    def compile(self, spec: KernelSpec, contract: Contract, tools: BuildTools) -> Artifact:
        return self.compile_together(spec, contract, (), tools)

    def compile_together(
        self, spec: KernelSpec, contract: Contract, others: Sequence[host_function.Member], tools: BuildTools
    ) -> Artifact:
        return host_function.build(spec, contract, tools, self.toolchain(spec, contract, tools.machine), others)

    def toolchain(
        self, spec: KernelSpec, contract: Contract, machine: Machine, march: str = "native"
    ) -> host_function.Toolchain:
        """The compiler and flags for a kernel: for this machine's processor, or for the architecture ``march``."""
        if machine.cxx is None:
            raise KernelRefusedError(f"{contract.qualname}:{spec.name}: there is no C++ compiler", fix="install g++")
        abi = abi_of(spec)
        flags = (f"-march={march}", f"-std={abi.cpp_standard}", *_FLAGS)
        libraries = ("-ltorch", "-ltorch_cpu", *(("-lc10", "-ltorch_python") if abi is ATEN else ()))
        native = machine.cpu + machine.cpu_flags
        return host_function.Toolchain(machine.cxx, flags, libraries, ".cpp", native)

    def load(self, artifact: Artifact, spec: KernelSpec, contract: Contract) -> Launch:
        assert artifact.file is not None  # compile always makes one
        return load_host_function(artifact.file, artifact.entry, contract)
