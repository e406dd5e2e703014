"""Triton kernels on a CPU: ``triton(kernel)[grid](...)``, and a block for launchers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kernelsim.host import Host
from kernelsim.own_host import own_host
from kernelsim.report import Report, report_of
from kernelsim.settings import current_options
from kernelsim.triton_sim.internals import launches_go_to
from kernelsim.triton_sim.simulate import Simulation

__all__ = ["TritonKernel", "triton", "triton_launches"]


def triton(kernel: Any, *, host: Host | None = None) -> TritonKernel:
    """A ``@triton.jit`` kernel for the CPU. An autotuned kernel takes its first configuration.

    Args:
        host: the compiler, cache and messages; by default kernelsim's own.
    """
    return TritonKernel(kernel, host)


class TritonKernel:
    """One kernel; ``kernel[grid](...)`` launches it on NumPy arrays or CPU tensors and returns a report."""

    def __init__(self, kernel: Any, host: Host | None) -> None:
        self.kernel, self.host = kernel, host

    def __getitem__(self, grid: Any) -> Callable[..., Report]:
        """Bind a grid: an int, a tuple of up to three, or a function of the arguments.

        The function that is returned takes the kernel's arguments as Triton does. It raises:
            FindingError: the kernel has errors; each finding names the source line.
            NotSimulatedError: it needs something that the simulator does not have, which is named.
            KernelError: Triton's frontend refuses the kernel.
        """
        return functools.partial(self._launch, grid)

    def _launch(self, grid: Any, *arguments: Any, **keywords: Any) -> Report:
        def launch() -> None:
            with triton_launches(host=self.host):
                self.kernel[grid](*arguments, **keywords)

        return report_of(_name(self.kernel), launch)


@contextlib.contextmanager
def triton_launches(*, given: Sequence[Any] | None = None, host: Host | None = None) -> Iterator[None]:
    """A block in which ``kernel[grid](...)`` runs Triton kernels on the CPU, for functions that launch them.

    Args:
        given: the arguments of a launcher. Through a part of one that it passes on, the kernel may access all of it,
            and through a part of a tensor that the launcher allocated, all of that. By default, a kernel may access
            what is passed to it, from the first element of each tensor to its last.
        host: the compiler, cache and messages; by default kernelsim's own.
    """
    chosen, here = current_options(), own_host() if host is None else host
    simulation = Simulation(chosen.checked, chosen.seed, given, here, chosen.uninitialised_in_triton, chosen.read_only)
    with launches_go_to(simulation.launch, here):
        yield


def _name(kernel: Any) -> str:
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return str(getattr(kernel, "__name__", kernel))
