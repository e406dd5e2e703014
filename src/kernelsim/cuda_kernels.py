"""CUDA C++ kernels called from Python: ``cuda(source)["kernel"][grid, block](...)``, as in CuPy, Numba and Triton."""

from __future__ import annotations

import ctypes
import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelsim.arguments import Parameter
from kernelsim.cuda_sim.simulate import Launch, simulate, simulated_kernel
from kernelsim.cuda_sim.variables import SharedVariables
from kernelsim.errors import KernelError, LaunchError
from kernelsim.host import Host
from kernelsim.launching import as_extent
from kernelsim.own_host import own_host
from kernelsim.report import Report, report_of
from kernelsim.settings import current_options
from kernelsim.text.includes import source_text
from kernelsim.text.library_headers import with_cutlass
from kernelsim.text.options import parse_options
from kernelsim.text.source import CudaSource, full_name

__all__ = ["CudaKernel", "CudaKernels", "cuda"]


_EMPTY = "nothing ran, as the grid {} has no blocks; a GPU refuses it (invalid configuration argument)"


def cuda(source: str | Path, *, flags: Sequence[str] = (), host: Host | None = None) -> CudaKernels:
    """The kernels of a CUDA C++ source, for the CPU. Each is compiled when it is first launched, and cached on disk.

    Args:
        source: a file, or CUDA C++ itself: a string with ``__global__`` or with several lines. Of a file with host
            code, the device code counts.
        flags: as for nvcc, one string each: ``["-DTILE=32", "-I", "include", "-arch=sm_90a"]``.
        host: the compiler, cache and messages; by default kernelsim's own.

    Raises:
        KernelError: no such file, an unknown flag, a source without a kernel.
    """
    if isinstance(source, str) and ("\n" in source or "__global__" in source):
        made = CudaSource(inspect.cleandoc(source) + "\n", None, tuple(flags))
    else:
        path = Path(source).absolute()
        if not path.is_file():
            raise KernelError(
                f"the source must be a file that exists, or CUDA C++, got {str(source)!r}",
                fix="name a file, or pass a text with a __global__ function",
            )
        made = CudaSource(source_text(path), path, tuple(flags))
    return CudaKernels(with_cutlass(made), own_host() if host is None else host)


class CudaKernels:
    """The kernels of one source. Nothing is compiled before it is needed.

    Attributes:
        names: of the ``__global__`` functions, templates among them.
    """

    def __init__(self, source: CudaSource, host: Host) -> None:
        self.source, self.host = source, host
        self.variables = SharedVariables()
        self.names = source.kernels
        parse_options(source.options)  # refuses an option that is not known
        if not self.names:
            raise KernelError(f"{source.name} has no __global__ function", fix="define one, or name another file")
        self._asked: dict[str, None] = {}  # the kernels that were asked for, in their order

    def __getitem__(self, name: str) -> CudaKernel:
        """A kernel by its name, or an instance of a template: ``kernels["add<float, 4>"]``. A namespace may be left
        out where that is not ambiguous.

        Raises:
            KernelError: there is none of that name, or several.
        """
        kernel = CudaKernel(self, full_name(self.source, name))
        self._asked.setdefault(kernel.name)
        return kernel

    def read(self, variable: str, dtype: str = "uint8") -> np.ndarray[Any, Any]:
        """A copy of a ``__device__`` or ``__constant__`` variable, with elements of a dtype.

        Raises:
            KernelError: no kernel has a variable of that name that is not const.
        """
        return np.frombuffer(bytes(self._memory(variable)), dtype=dtype)

    def write(self, variable: str, values: Any) -> None:
        """Write a whole ``__device__`` or ``__constant__`` variable.

        Args:
            values: what NumPy makes an array of; its bytes are written.

        Raises:
            KernelError: no kernel has such a variable, or it has another size.
        """
        data, memory = np.ascontiguousarray(values), self._memory(variable)
        if data.nbytes != len(memory):
            raise KernelError(f"the values of {variable!r} must have {len(memory)} bytes, got {data.nbytes}")
        ctypes.memmove(memory, data.ctypes.data, data.nbytes)

    def _memory(self, variable: str) -> ctypes.Array[ctypes.c_char]:
        """The memory with a variable's newest value. Kernels that were asked for come first, templates only then."""
        plain = [name for name in self.names if not self.source.defining(name).is_template(name)]
        for name in dict.fromkeys([*self._asked, *(full_name(self.source, name) for name in plain)]):
            kernel = simulated_kernel(self.source, name, self.host, checked=current_options().checked)
            memory = self.variables.memory(kernel, variable)
            if memory is not None:
                return memory
        raise KernelError(f"{self.source.name}: the variable must be one that can be written, got {variable!r}")

    def __repr__(self) -> str:
        return f"<CUDA kernels of {self.source.name}: {', '.join(self.names)}>"


class CudaKernel:
    """One kernel, or one instance of a template."""

    def __init__(self, kernels: CudaKernels, name: str) -> None:
        self.kernels, self.name = kernels, name

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its parameters; compiles it."""
        return simulated_kernel(
            self.kernels.source, self.name, self.kernels.host, checked=current_options().checked
        ).parameters

    def __getitem__(self, launch: Any) -> Callable[..., Report]:
        """Bind a grid (blocks), a block (threads) and, as a third and fourth, bytes of dynamic shared memory and a
        cluster (blocks). Each of grid, block and cluster is an int or a tuple of up to three.

        The function that is returned takes the kernel's arguments: NumPy arrays or torch tensors for pointers, numbers,
        and structures of ctypes. It raises:
            FindingError: the kernel has errors; each finding names the source line.
            LaunchError: arguments that the kernel's parameters do not take, or a launch beyond CUDA's limits.
            CompileError, RefusedError: it does not compile as C++, or uses features that are not simulated.
        """
        if not isinstance(launch, tuple) or not 2 <= len(launch) <= 4:
            raise LaunchError(
                f"{self.name}: a launch must be [grid, block] with at most two more, got {launch!r}",
                fix=f"write {self.name}[grid, block](...), or {self.name}[grid, block, shared_bytes, cluster](...)",
            )
        grid, block, shared_bytes, cluster = (*launch, 0, None)[:4] if len(launch) < 4 else launch
        return functools.partial(
            self._launch,
            Launch(
                as_extent(grid, "grid", self.name),
                as_extent(block, "block", self.name),
                shared_bytes,
                None if cluster is None else as_extent(cluster, "cluster", self.name),
            ),
        )

    def _launch(self, launch: Launch, *arguments: Any) -> Report:
        source, host, variables = self.kernels.source, self.kernels.host, self.kernels.variables
        return report_of(
            self.name,
            lambda: simulate(source, self.name, launch, arguments, host, current_options(), variables),
            note=_EMPTY.format(launch.grid) if 0 in launch.grid else "",
        )

    def __call__(self, *arguments: Any) -> Any:
        raise LaunchError(
            f"{self.name} was called without a grid",
            fix=f"write {self.name}[grid, block](...): blocks, then threads of a block",
        )
