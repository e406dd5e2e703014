"""Resets persisting lines of the GPU's L2, which would survive overwriting the cache."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch

__all__ = ["reset_persisting_lines"]


def reset_persisting_lines() -> str:
    """Reset the persisting lines of the current context's L2. Returns why that was not possible, or ``""``.

    CUDA Driver API, ``cuCtxResetPersistingL2Cache`` (CUDA 11.0 and later).
    """
    reset, why_not = _find()
    if reset is None:
        return why_not
    code = reset()
    return "" if code == 0 else f"the driver returned error {code}"


@functools.cache
def _find() -> tuple[Callable[[], int] | None, str]:
    """The driver's function, else the equivalent one of the runtime that torch has loaded."""
    runtime = f"libcudart.so.{(torch.version.cuda or '0').split('.')[0]}"
    for library, name in (("libcuda.so.1", "cuCtxResetPersistingL2Cache"), (runtime, "cudaCtxResetPersistingL2Cache")):
        try:
            function: Callable[[], int] = getattr(ctypes.CDLL(library), name)
        except (OSError, AttributeError):
            continue
        return function, ""
    return None, f"neither libcuda.so.1 nor {runtime} can be loaded"
