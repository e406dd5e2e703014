"""Lines of the GPU's L2 that a kernel marked as persisting survive an overwriting of the cache. Here they are reset."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch

__all__ = ["reset_persisting_lines"]


def reset_persisting_lines() -> str:
    """Make the L2 of the current context forget what is to persist. Returns why that was not possible, or ``""``.

    CUDA Driver API, ``cuCtxResetPersistingL2Cache`` (CUDA 11.0 and later).
    """
    reset, why_not = _find()
    if reset is None:
        return why_not
    code = reset()
    return "" if code == 0 else f"the driver answered error {code}"


@functools.cache
def _find() -> tuple[Callable[[], int] | None, str]:
    """The driver's function, else the runtime's that torch has loaded: both do the same to the current context."""
    runtime = f"libcudart.so.{(torch.version.cuda or '0').split('.')[0]}"
    for library, name in (("libcuda.so.1", "cuCtxResetPersistingL2Cache"), (runtime, "cudaCtxResetPersistingL2Cache")):
        try:
            function: Callable[[], int] = getattr(ctypes.CDLL(library), name)
        except (OSError, AttributeError):
            continue
        return function, ""
    return None, f"neither libcuda.so.1 nor {runtime} can be loaded"
