"""Properties of a call's arguments, for kernels of every language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from opwright import tree

__all__ = ["dtypes_that_count", "gpu_of"]


def dtypes_that_count(arguments: Sequence[Any]) -> frozenset[torch.dtype]:
    """The dtypes that ``KernelSpec.dtypes`` restricts: the floating ones, or all if there are none."""
    found = {t.dtype for t in tree.tensors(list(arguments))}
    floating = {d for d in found if d.is_floating_point or d.is_complex}
    return frozenset(floating or found)


def gpu_of(arguments: Sequence[Any]) -> int | None:
    """The GPU of the first tensor; None if that is on another device."""
    for argument in arguments:
        tensor = argument[0] if isinstance(argument, list | tuple) and argument else argument
        if isinstance(tensor, torch.Tensor):
            return tensor.get_device() if tensor.is_cuda else None
    return None
