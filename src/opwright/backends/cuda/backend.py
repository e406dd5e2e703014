"""Kernels in CUDA C++: a Python launcher around ``ow.cuda_module`` kernels, or a ``.cu`` file with a host function
of the operator's signature on ``torch::stable::Tensor``, built with nvcc.

The first compiles in a tenth of a second and needs no toolkit; a C++ program can link the second as well.
Both are opaque to torch.compile.
"""

from __future__ import annotations

import contextlib
import functools
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from opwright.backends.base import Artifact, Backend, KernelSpec, Launch
from opwright.backends.build_tools import BuildTools
from opwright.backends.check_hooks import CheckHooks
from opwright.backends.cuda import nvrtc
from opwright.backends.cuda.host.expressions import SIMULATE_BY_LAUNCHER
from opwright.backends.cuda.host.part import HostPart
from opwright.backends.cuda.module import CudaModule, kernels
from opwright.backends.gpu.on_meta import run_on_meta
from opwright.backends.gpu.recording import RecordableLauncher
from opwright.backends.gpu.simulated_tensors import on_simulated
from opwright.backends.native import host_function
from opwright.backends.native.abi import ATEN, abi_of
from opwright.backends.native.binding import binding_text
from opwright.backends.native.host_call import load_host_function
from opwright.backends.reachable import values_reached
from opwright.backends.simulation import CudaSource, cuda_simulator, order_cuda_threads, source_text, with_cutlass
from opwright.contract.contract import Contract
from opwright.errors import KernelError, KernelRefusedError
from opwright.machine import Compiler, Machine
from opwright.results import Accepted, Probe, Refused
from opwright.results.outcomes import RunOnMeta
from opwright.target import Engine, Target, engines_here

__all__ = ["CudaBackend"]

# The architectures of a file on a machine without a GPU, as far as its nvcc supports them.
_ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
# USE_CUDA enables the part of torch's C shim that returns the current stream.
_FLAGS = (
    "-O3", "-shared", "-lineinfo", "-DUSE_CUDA", "-Xcompiler", "-fPIC", "--expt-relaxed-constexpr",
    "--threads", "0",
)  # fmt: skip
_RELOCATABLE = re.compile(r"-rdc\b|--relocatable-device-code\b|-dc$|--device-c$|-dlto$|--dlink-time-opt$")
_ATEN_LIBRARIES = ("-lc10", "-ltorch_python", "-lc10_cuda", "-ltorch_cuda")
_NO_NVCC = "nvcc is not found"
_INSTALL_NVCC = "install a CUDA toolkit, or write a Python launcher around ow.cuda_module, which needs none"


class _CudaHooks(CheckHooks):
    computes_itself = True
    has_barriers = True

    @staticmethod
    def under_check(order: int) -> contextlib.AbstractContextManager[None]:
        """Run simulated threads in a permuted order, so that a result that depends on their order differs."""
        return order_cuda_threads(order)

    def on_meta(self) -> Callable[[Sequence[Any]], RunOnMeta] | Refused:
        if not isinstance(self.spec.source, Path):
            return functools.partial(run_on_meta, self.spec.source, self.contract)
        try:
            return functools.partial(run_on_meta, _host_part(self.spec), self.contract)
        except KernelError as error:
            return Refused(f"only host functions that the simulator runs can be asked: {error.message}")


class CudaBackend(Backend):
    """A launcher in Python, or a file for nvcc. ``options`` are nvcc's, for a file."""

    name = "cuda"
    mutates = True
    not_packaged = (
        "launches kernels of ow.cuda_module, which opwright compiles when they run",
        "write a .cu file with a host function, op.cuda('kernel.cu'), or a Triton launcher",
    )
    check_hooks = _CudaHooks
    takes = frozenset({"callable", "file"})
    suffixes = (".cu",)
    default_devices = ("cuda",)

    def available(self, machine: Machine) -> Probe:
        compiled, simulated = nvrtc.available(), cuda_simulator(machine)
        if isinstance(compiled, Refused):
            if isinstance(simulated, Refused) or machine.has_gpu:
                return compiled
            return Accepted(f"in the simulator only: {compiled.reason} ({compiled.remedy})")
        notes = [
            compiled.note,
            machine.nvcc.version if machine.nvcc else "no nvcc, so no .cu files with host functions",
        ]
        if not machine.has_gpu:
            how = f"not simulated either: {simulated.reason}" if isinstance(simulated, Refused) else "in the simulator"
            notes.append(f"no GPU, so only `opwright check` and CPU tensors run it, {how}")
        return Accepted("; ".join(notes))

    def probe(self, spec: KernelSpec, target: Target, machine: Machine) -> Probe:
        if target.device == "cpu" and "cuda" in spec.devices:
            if target.engine is Engine.SIMULATOR:
                return _simulated_host_part(spec, machine) if isinstance(spec.source, Path) else cuda_simulator(machine)
            return Refused(
                "CUDA kernels run on a GPU; on a CPU only in the simulator",
                "use `opwright check`, which does so in a worker, or set OPWRIGHT_CUDA_SIMULATOR=1",
            )
        return super().probe(spec, target, machine)

    def tools_for(self, spec: KernelSpec, machine: Machine) -> Probe:
        if not isinstance(spec.source, Path):
            return nvrtc.available()
        return Accepted(machine.nvcc.version) if machine.nvcc else Refused(_NO_NVCC, _INSTALL_NVCC)

    def validate(self, spec: KernelSpec, contract: Contract) -> None:
        if isinstance(spec.source, Path):
            host_function.validate(spec, contract)
        else:
            host_function.check_options(spec, contract)
            super().validate(spec, contract)

    def files(self, spec: KernelSpec) -> Iterator[Path]:
        if isinstance(spec.source, Path):
            yield from host_function.files(spec.source)
            return
        for module in (value for value in values_reached(spec.source) if isinstance(value, CudaModule)):
            if module.source.path is not None:
                yield module.source.path.absolute()
            yield from (header.absolute() for header in module.source.headers())

    def generate(self, spec: KernelSpec, contract: Contract) -> str:
        if isinstance(spec.source, Path):
            return binding_text(spec, contract, unique="<hash>")
        return super().generate(spec, contract)

    def compile(self, spec: KernelSpec, contract: Contract, tools: BuildTools) -> Artifact:
        return self.compile_together(spec, contract, (), tools)

    def compile_together(
        self, spec: KernelSpec, contract: Contract, others: Sequence[host_function.Member], tools: BuildTools
    ) -> Artifact:
        if not isinstance(spec.source, Path):
            return Artifact(spec.entry, payload=spec.source)  # its kernels are compiled when they are launched
        if Engine.SIMULATOR not in engines_here():
            return self._build(spec, contract, tools, others)
        if tools.machine.nvcc is not None:  # its errors are the kernel's, simulated or not
            self._build(spec, contract, tools, others)
        return Artifact(spec.entry, payload=_host_part(spec))

    def _build(
        self, spec: KernelSpec, contract: Contract, tools: BuildTools, others: Sequence[host_function.Member]
    ) -> Artifact:
        return host_function.build(spec, contract, tools, self.toolchain(spec, contract, tools.machine), others)

    def toolchain(self, spec: KernelSpec, contract: Contract, machine: Machine) -> host_function.Toolchain:
        """The tools and flags for a file: for the machine's GPUs, or for all architectures in use if it has none."""
        if machine.nvcc is None:
            raise KernelRefusedError(f"{contract.qualname}:{spec.name}: {_NO_NVCC}", fix=_INSTALL_NVCC)
        abi = abi_of(spec)
        flags = (f"-std={abi.cpp_standard}", *_FLAGS, *_device_link_flags(spec), *_architecture_flags(spec, machine))
        libraries = ("-ltorch", "-ltorch_cpu", *(_ATEN_LIBRARIES if abi is ATEN else ()))
        more = nvrtc.cuda_include_folders() if abi is ATEN else ()  # ATen includes cuBLAS, cuSPARSE and cuSOLVER
        # The CUDA part of the stable ABI is in torch_cuda, which a GPU process has loaded.
        toolkit = Path(machine.nvcc.path).resolve().parents[1]
        return host_function.Toolchain(machine.nvcc, flags, libraries, ".cu", toolkit=toolkit, more_headers=more)

    def load(self, artifact: Artifact, spec: KernelSpec, contract: Contract) -> Launch:
        if artifact.file is None:
            writes = bool(contract.signature.mutated)
            own: Launch = artifact.payload
            if isinstance(spec.source, Path):
                return own
            launch = on_simulated(own) if Engine.SIMULATOR in engines_here() else own
            launcher = RecordableLauncher(launch, own, kernels=kernels, passed_on=(int, float), writes=writes)
            return contract.signature.flat(launcher)
        return load_host_function(artifact.file, artifact.entry, contract)


def _host_part(spec: KernelSpec) -> Launch:
    """The host function of a file as one in Python, whose kernels the simulator runs.

    Raises:
        NotSimulatedError: it does more than to launch.
    """
    assert isinstance(spec.source, Path)  # the caller has tested it
    source = CudaSource(source_text(spec.source), spec.source.absolute(), tuple(spec.options.get("options", ())))
    return HostPart(CudaModule(with_cutlass(source))).function(spec.entry)


def _simulated_host_part(spec: KernelSpec, machine: Machine) -> Probe:
    """Whether a file's host function is simulated. One that is not is compiled all the same, for the errors."""
    simulator = cuda_simulator(machine)
    if isinstance(simulator, Refused):
        return simulator
    try:
        _host_part(spec)
    except KernelError as error:
        if machine.nvcc is None:
            return Refused(error.message, error.fix or SIMULATE_BY_LAUNCHER)
    return simulator


def _device_link_flags(spec: KernelSpec) -> tuple[str, ...]:
    """No link of device code, which has nothing to link where it is not relocatable. With several architectures at a
    time (``--threads``), nvcc's links of them share a file that one may read before another has written it."""
    return () if any(_RELOCATABLE.match(o) for o in spec.options.get("options", ())) else ("--no-device-link",)


def _architecture_flags(spec: KernelSpec, machine: Machine) -> tuple[str, ...]:
    """For the GPUs at hand, or for every architecture in use without one; the newest also as PTX, for later GPUs.

    Architectures that the user names (``-gencode``, ``-arch``) replace these.
    """
    if any(
        o.startswith(("-gencode", "--generate-code", "-arch", "--gpu-arch")) for o in spec.options.get("options", ())
    ):
        return ()
    assert machine.nvcc is not None  # refused by the caller
    known = _known_architectures(machine.nvcc)
    if Engine.SIMULATOR in engines_here():  # compiled for its errors only
        return (f"-arch=sm_{max(known & set(_ARCHITECTURES) or known)}",)
    here = {10 * gpu.capability[0] + gpu.capability[1] for gpu in machine.gpus}
    chosen = sorted(known & (here or set(_ARCHITECTURES))) or [max(known)]
    built = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in chosen]
    return (*built, f"-gencode=arch=compute_{chosen[-1]},code=compute_{chosen[-1]}")


@functools.cache
def _known_architectures(nvcc: Compiler) -> set[int]:
    listed = subprocess.run([nvcc.path, "--list-gpu-code"], capture_output=True, text=True, check=True).stdout
    return {int(n) for n in re.findall(r"sm_(\d+)\b", listed)}
