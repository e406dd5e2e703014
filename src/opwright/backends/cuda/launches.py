"""The kernels that a launcher launches on given arguments, without a launch: also those whose names it composes, such
as ``module[f"add<{type}>"]``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from opwright.backends.cuda.module import CudaKernel
from opwright.backends.gpu.cuda_launches import cuda_launches_go_to
from opwright.contract.contract import Contract

__all__ = ["kernels_launched"]


def kernels_launched(launcher: Callable[..., Any], contract: Contract, arguments: Sequence[Any]) -> list[CudaKernel]:
    """Those that are launched until the launcher ends, or needs a value that tensors on ``meta`` do not have.

    Raises:
        KernelError: it names a kernel that its module does not have.
    """
    launched: list[CudaKernel] = []
    with (
        contextlib.suppress(NotImplementedError, RuntimeError, TypeError, ValueError),
        cuda_launches_go_to(lambda kernel, *_: launched.append(kernel)),
    ):
        contract.signature.call(launcher, arguments)
    return launched
