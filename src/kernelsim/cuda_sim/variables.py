"""The ``__device__`` and ``__constant__`` variables of a source in the simulator, where each kernel has its own copy.

Before a launch, a kernel's copies get the values of the kernel that ran last, so all of a source behave as one.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kernelsim.cuda_sim.kernel import SimulatedKernel, SimulatedVariable

__all__ = ["SharedVariables"]


@dataclass(frozen=True)
class _Holder:
    """A variable's newest value: in the memory of one kernel, which is held so that it stays loaded."""

    kernel: SimulatedKernel
    variable: SimulatedVariable


class SharedVariables:
    """The variables of one module, for all kernels that it has loaded."""

    def __init__(self) -> None:
        self._newest: dict[str, _Holder] = {}
        self._lock = threading.RLock()

    @contextmanager
    def launching(self, kernel: SimulatedKernel) -> Iterator[None]:
        """A block in which the kernel runs, with the newest values, and one kernel of the module at a time."""
        if not kernel.variables:
            yield
            return
        with self._lock:
            self._bring(kernel)
            yield

    def memory(self, kernel: SimulatedKernel, name: str) -> ctypes.Array[ctypes.c_char] | None:
        """The memory of a variable with its newest value; None if the kernel has none of that name."""
        with self._lock:
            found = next((v for v in kernel.variables if v.name == name), None)
            if found is None:
                return None
            self._bring(kernel)
            return found.memory

    def _bring(self, kernel: SimulatedKernel) -> None:
        for variable in kernel.variables:
            holder = self._newest.get(variable.symbol)
            if holder is not None and holder.kernel is not kernel:
                ctypes.memmove(variable.memory, holder.variable.memory, len(variable.memory))
            self._newest[variable.symbol] = _Holder(kernel, variable)
