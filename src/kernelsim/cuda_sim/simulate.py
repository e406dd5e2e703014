"""Launches CUDA kernels on CPU tensors in the simulator."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelsim.cuda_sim.compilation import compile_kernel
from kernelsim.cuda_sim.kernel import SimulatedKernel
from kernelsim.cuda_sim.memory import Unwritten
from kernelsim.cuda_sim.variables import SharedVariables
from kernelsim.host import Host
from kernelsim.launching import Extent
from kernelsim.text.source import CudaSource

__all__ = ["Launch", "Options", "simulate", "simulated_kernel"]


@dataclass(frozen=True)
class Options:
    """How kernels are launched; see ``kernelsim.options``."""

    checked: bool = True
    seed: int | None = None
    time_limit_s: float | None = None
    uninitialised: tuple[Unwritten, ...] = ()
    reachable: tuple[Any, ...] = ()
    read_only: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Launch:
    """The grid and the block of a launch, its bytes of dynamic shared memory, and its cluster; None for the kernel's
    own."""

    grid: Extent
    block: Extent
    shared_bytes: int = 0
    cluster: Extent | None = None


def simulate(
    source: CudaSource,
    name: str,
    launch: Launch,
    arguments: Sequence[Any],
    host: Host,
    options: Options,
    variables: SharedVariables | None = None,
) -> SimulatedKernel:
    """Run a kernel in the simulator, compiled on first use, and return it.

    Args:
        variables: of the kernel's module; None for a kernel by itself.

    Raises:
        FindingError: the kernel has errors; each finding names the source line.
        CompileError, RefusedError: it does not compile as C++, or uses unsupported features.
    """
    with host.calling():
        kernel = _kernel(source, name, options.checked, host)
    if 0 in launch.grid:
        return kernel
    with host.calling(), (variables or SharedVariables()).launching(kernel):
        kernel.launch(
            launch.grid,
            launch.block,
            launch.shared_bytes,
            arguments,
            cluster=launch.cluster,
            seed=options.seed,
            time_limit_s=options.time_limit_s,
            uninitialised=options.uninitialised,
            reachable=options.reachable,
            read_only=options.read_only,
        )
    return kernel


def simulated_kernel(source: CudaSource, name: str, host: Host, *, checked: bool) -> SimulatedKernel:
    """A kernel, compiled if necessary."""
    with host.calling():
        return _kernel(source, name, checked, host)


_kernels: dict[tuple[CudaSource, str, bool, Host], SimulatedKernel] = {}
_MOST_KERNELS = 256
_loading = threading.Lock()


def _kernel(source: CudaSource, name: str, checked: bool, host: Host) -> SimulatedKernel:
    """The kernel, which is loaded once, by whichever thread asks first."""
    key = source, name, checked, host
    kernel = _kernels.get(key)
    if kernel is None:
        built = compile_kernel(source, name, host, checked=checked)
        with _loading:
            kernel = _kernels.get(key) or SimulatedKernel(built, host)
            if len(_kernels) >= _MOST_KERNELS:
                _kernels.pop(next(iter(_kernels)))
            _kernels[key] = kernel
    return kernel
