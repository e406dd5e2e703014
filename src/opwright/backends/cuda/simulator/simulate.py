"""Launches of CUDA kernels on CPU tensors: how the simulator is used, and with which options."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from opwright.backends.build_tools import build_tools
from opwright.backends.cuda.simulator.compilation import compile_kernel
from opwright.backends.cuda.simulator.kernel import SimulatedKernel, Unwritten, load
from opwright.backends.cuda.source import CudaSource
from opwright.backends.gpu.launcher import Configuration

__all__ = ["simulate", "simulator_options"]


@dataclass(frozen=True)
class _Options:
    checked: bool = True
    seed: int | None = None
    time_limit_s: float | None = None
    uninitialised: tuple[Unwritten, ...] = ()


_USUAL = _Options()
_options: ContextVar[_Options] = ContextVar("simulator_options", default=_USUAL)


@contextlib.contextmanager
def simulator_options(
    *,
    checked: bool = True,
    seed: int | None = None,
    time_limit_s: float | None = None,
    uninitialised: Sequence[torch.Tensor] = (),
) -> Iterator[None]:
    """Within this block, CUDA kernels launched on CPU tensors are simulated so.

    Args:
        checked: look at every memory access and every barrier (the default); without, kernels run many times faster.
        seed: permute the order in which blocks and threads run, so that a result that depends on it shows.
        time_limit_s: seconds after which a launch counts as hung.
        uninitialised: tensors that hold no values yet, as ``torch.empty`` makes them: reading what no kernel of this
            block wrote is a finding.
    """
    unwritten = tuple(Unwritten(tensor) for tensor in uninitialised)
    token = _options.set(_Options(checked, seed, time_limit_s, unwritten))
    try:
        yield
    finally:
        _options.reset(token)


def simulate(source: CudaSource, name: str, configuration: Configuration, arguments: Sequence[Any]) -> None:
    """Run a kernel in the simulator, compiled on first use.

    Raises:
        SimulatorError: the kernel did what no kernel may; each finding names the source line.
        CompileError, KernelRefusedError: it does not compile as C++, or uses what cannot be simulated.
    """
    options = _options.get()
    kernel = _kernel(source, name, options.checked)
    if not configuration.is_empty:
        kernel.launch(
            configuration.grid,
            configuration.block,
            configuration.shared_bytes,
            arguments,
            seed=options.seed,
            time_limit_s=options.time_limit_s,
            uninitialised=options.uninitialised,
        )


@functools.lru_cache(maxsize=256)
def _kernel(source: CudaSource, name: str, checked: bool) -> SimulatedKernel:
    return load(compile_kernel(source, name, build_tools(), checked=checked))
