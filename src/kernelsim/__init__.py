"""CUDA C++ and Triton kernels on a CPU: compiled, with every access, race and barrier checked.

>>> import kernelsim
>>> report = kernelsim.cuda("saxpy.cu")["saxpy"][4, 256](x, y, out, 2.0, 1000)  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelsim.cuda_kernels import cuda
    from kernelsim.errors import CompileError, FindingError, KernelError, LaunchError, RefusedError
    from kernelsim.findings import Finding
    from kernelsim.report import Report
    from kernelsim.settings import options
    from kernelsim.tensor_maps import tensor_map
    from kernelsim.triton_kernels import triton, triton_launches

__all__ = [
    "CompileError", "Finding", "FindingError", "KernelError", "LaunchError", "RefusedError", "Report", "cuda",
    "options", "tensor_map", "triton", "triton_launches",
]  # fmt: skip

# Imported when they are first used: who wants CUDA does not wait for the rest.
_MODULE_OF = {
    "CompileError": "errors", "Finding": "findings", "FindingError": "errors", "KernelError": "errors",
    "LaunchError": "errors", "RefusedError": "errors", "Report": "report", "cuda": "cuda_kernels",
    "options": "settings", "tensor_map": "tensor_maps", "triton": "triton_kernels", "triton_launches": "triton_kernels",
}  # fmt: skip

if not TYPE_CHECKING:  # type checkers report missing names themselves

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'kernelsim' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"kernelsim.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
