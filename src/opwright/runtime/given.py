"""What is asked of a call's arguments, and of what an author attaches, whatever the kernel's language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["dtypes_that_count", "gpu_of", "kernel_name"]


def kernel_name(backend_name: str, source: Any, name: str | None) -> tuple[str, str]:
    """What a kernel is called, and its entry where none was named ("": the operator's name)."""
    own_name = getattr(source, "__name__", "_") if callable(source) else ""
    speaks = own_name not in ("", "_", "<lambda>")
    return name or (own_name if speaks else backend_name), own_name


def dtypes_that_count(arguments: Sequence[Any]) -> frozenset[torch.dtype]:
    """The dtypes that ``KernelSpec.dtypes`` speaks of: the floating ones, or all if there are none."""
    found = {
        t.dtype for a in arguments for t in (a if isinstance(a, list | tuple) else (a,)) if isinstance(t, torch.Tensor)
    }
    floating = {d for d in found if d.is_floating_point or d.is_complex}
    return frozenset(floating or found)


def gpu_of(arguments: Sequence[Any]) -> int | None:
    """The GPU of the first tensor; None where that is on another device."""
    for argument in arguments:
        tensor = argument[0] if isinstance(argument, list | tuple) and argument else argument
        if isinstance(tensor, torch.Tensor):
            return tensor.get_device() if tensor.is_cuda else None
    return None
