"""Launches CUDA kernels on CPU tensors in the simulator, with its options."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from opwright.backends.build_tools import build_tools
from opwright.backends.cuda.simulator.compilation import compile_kernel
from opwright.backends.cuda.simulator.kernel import SimulatedKernel, load
from opwright.backends.cuda.simulator.memory import Unwritten
from opwright.backends.cuda.simulator.variables import SharedVariables
from opwright.backends.cuda.source import CudaSource
from opwright.backends.gpu.launcher import Configuration

__all__ = ["simulate", "simulated_kernel", "simulator_options"]


@dataclass(frozen=True)
class _Options:
    checked: bool = True
    seed: int | None = None
    time_limit_s: float | None = None
    uninitialised: tuple[Unwritten, ...] = ()
    reachable: tuple[torch.Tensor, ...] = ()


_DEFAULT_OPTIONS = _Options()
_options: ContextVar[_Options] = ContextVar("simulator_options", default=_DEFAULT_OPTIONS)


@contextlib.contextmanager
def simulator_options(
    *,
    checked: bool = True,
    seed: int | None = None,
    time_limit_s: float | None = None,
    uninitialised: Sequence[torch.Tensor] = (),
    reachable: Sequence[torch.Tensor] = (),
) -> Iterator[None]:
    """A block with other options for the simulation of CUDA kernels on CPU tensors.

    Args:
        checked: check every memory access and every barrier (the default); without it, kernels run many times faster.
        seed: permute the order in which blocks and threads run, so that a result that depends on it differs.
        time_limit_s: seconds after which a launch counts as hung.
        uninitialised: tensors without values, such as from ``torch.empty``: reading bytes that no kernel of this
            block has written is a finding.
        reachable: tensors whose addresses kernels take from structures, or from other tensors.
    """
    unwritten = tuple(Unwritten(tensor) for tensor in uninitialised)
    token = _options.set(_Options(checked, seed, time_limit_s, unwritten, tuple(reachable)))
    try:
        yield
    finally:
        _options.reset(token)


def simulate(
    source: CudaSource,
    name: str,
    configuration: Configuration,
    arguments: Sequence[Any],
    variables: SharedVariables | None = None,
) -> None:
    """Run a kernel in the simulator, compiled on first use.

    Args:
        variables: of the kernel's module; None for a kernel by itself.

    Raises:
        SimulatorError: the kernel has errors; each finding names the source line.
        CompileError, KernelRefusedError: it does not compile as C++, or uses unsupported features.
    """
    options = _options.get()
    kernel = _kernel(source, name, options.checked)
    if configuration.is_empty:
        return
    with (variables or SharedVariables()).launching(kernel):
        kernel.launch(
            configuration.grid,
            configuration.block,
            configuration.shared_bytes,
            arguments,
            cluster=configuration.cluster,
            seed=options.seed,
            time_limit_s=options.time_limit_s,
            uninitialised=options.uninitialised,
            reachable=options.reachable,
        )


def simulated_kernel(source: CudaSource, name: str) -> SimulatedKernel:
    """A kernel as the options of this block launch it, compiled if necessary."""
    return _kernel(source, name, _options.get().checked)


_kernels: dict[tuple[CudaSource, str, bool], SimulatedKernel] = {}
_MOST_KERNELS = 256
_loading = threading.Lock()


def _kernel(source: CudaSource, name: str, checked: bool) -> SimulatedKernel:
    """The kernel, which is loaded once, by whichever thread asks first."""
    key = source, name, checked
    kernel = _kernels.get(key)
    if kernel is None:
        artifact = compile_kernel(source, name, build_tools(), checked=checked)
        with _loading:
            kernel = _kernels.get(key) or load(artifact)
            if len(_kernels) >= _MOST_KERNELS:
                _kernels.pop(next(iter(_kernels)))
            _kernels[key] = kernel
    return kernel
