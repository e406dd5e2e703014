"""The public names of opwright in a shipped package: those that define operators. The tools are replaced by objects
that raise an error when they are called."""

from __future__ import annotations

import contextlib
from typing import Any

from opwright import errors, inputs
from opwright.contract.process_group import ProcessGroup
from opwright.contract.signature import by_property, mutated, no_gradient, replicated, saved_for_backward
from opwright.contract.values import values
from opwright.errors import KernelRefusedError
from opwright.package.shipped.operator import Op, op
from opwright.runtime.cuda_graphs.graphed import CudaGraphed, cuda_graphed

__all__ = [
    "CudaGraphed", "Op", "ProcessGroup", "by_property", "cdiv", "cuda_graphed", "cuda_module", "errors", "fast_calls",
    "inputs", "mutated", "no_gradient", "op", "replicated", "saved_for_backward", "values",
]  # fmt: skip

# The other public names: of tools, and of what tools return.
NOT_SHIPPED = frozenset({
    "CompiledNumpy", "CudaModule", "Events", "Kernel", "TensorMap", "adopt", "assert_checked", "bench", "capture",
    "check", "compile_numpy", "explain", "judge", "mutate", "results", "selftest", "tensor_map", "testing", "tune",
})  # fmt: skip


def cdiv(a: int, b: int) -> int:
    """The quotient rounded up."""
    return -(-a // b)


def fast_calls(enabled: bool) -> contextlib.AbstractContextManager[None]:
    """A block like any other: every call of a shipped operator goes through torch's dispatcher."""
    return contextlib.nullcontext()


class NotShipped:
    """Replaces a part of opwright that a shipped package does not have. Indexing and attributes return it, calls raise.

    A module may make CUDA kernels with ``ow.cuda_module`` while it is imported: their launchers are left out of the
    package, so that nothing calls this object.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __getitem__(self, key: Any) -> NotShipped:
        return self

    def __getattr__(self, name: str) -> NotShipped:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise KernelRefusedError(f"{self._what} is not part of a shipped package", fix="use opwright itself")


def cuda_module(*_: Any, **__: Any) -> Any:
    """A replacement of CUDA kernels called from Python, which are left out of a package."""
    return NotShipped("ow.cuda_module")


def __getattr__(name: str) -> Any:
    if name in NOT_SHIPPED:
        return NotShipped(f"ow.{name}")
    raise AttributeError(f"opwright has no {name!r} in a shipped package")
