"""Properties of a call's arguments, for kernels of every language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from opwright import tree
from opwright.contract.signature import Signature

__all__ = ["dtypes_that_count", "gpu_of", "of_open_dtype"]


def dtypes_that_count(arguments: Sequence[Any]) -> frozenset[torch.dtype]:
    """The floating dtypes, or all if there are none."""
    found = {t.dtype for t in tree.tensors(list(arguments))}
    floating = {d for d in found if d.is_floating_point or d.is_complex}
    return frozenset(floating or found)


def of_open_dtype(signature: Signature, arguments: Sequence[Any]) -> list[Any]:
    """The tensors whose annotation leaves a choice of dtype, which a kernel's ``dtypes=`` is about; all, if there are
    none."""
    pairs = zip(signature.arguments, arguments, strict=False)
    found = tree.tensors([value for a, value in pairs if a.tensor and len(a.tensor.dtypes) > 1])
    return found or list(arguments)


def gpu_of(arguments: Sequence[Any]) -> int | None:
    """The GPU of the first tensor; None if that is on another device."""
    for argument in arguments:
        tensor = argument[0] if isinstance(argument, list | tuple) and argument else argument
        if isinstance(tensor, torch.Tensor):
            return tensor.get_device() if tensor.device.type == "cuda" else None  # is_cuda is as a simulator says
    return None
