"""The kernels that a launcher launches on given arguments, without a launch: also those whose names it composes, such
as ``module[f"add<{type}>"]``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from opwright.backends.cuda.module import CudaKernel, CudaModule
from opwright.backends.reachable import values_reached
from opwright.contract.contract import Contract
from opwright.contract.reference import replace_globals

__all__ = ["kernels_launched"]


def kernels_launched(launcher: Callable[..., Any], contract: Contract, arguments: Sequence[Any]) -> list[CudaKernel]:
    """Those that are launched until the launcher ends, or needs a value that tensors on ``meta`` do not have.

    Raises:
        KernelError: it names a kernel that its module does not have.
    """
    launched: list[CudaKernel] = []
    recorders: dict[int, Any] = {}
    for value in values_reached(launcher):
        if isinstance(value, CudaModule):
            recorders[id(value)] = _RecordingModule(value, launched)
        elif isinstance(value, CudaKernel):
            recorders[id(value)] = _RecordingKernel(value, launched)
    with contextlib.suppress(NotImplementedError, RuntimeError, TypeError, ValueError):
        contract.signature.call(replace_globals(launcher, recorders), arguments)
    return launched


class _RecordingModule:
    """Stands for a module in a launcher."""

    def __init__(self, module: CudaModule, launched: list[CudaKernel]) -> None:
        self._module, self._launched = module, launched

    def __getitem__(self, name: str) -> _RecordingKernel:
        return _RecordingKernel(self._module[name], self._launched)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _RecordingKernel:
    """Stands for a kernel in a launcher, and records its launches."""

    def __init__(self, kernel: CudaKernel, launched: list[CudaKernel]) -> None:
        self._kernel, self._launched = kernel, launched

    def __getitem__(self, launch: Any) -> Callable[..., None]:
        return lambda *arguments: self._launched.append(self._kernel)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)
