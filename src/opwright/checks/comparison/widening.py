"""A reference in float32, where torch lacks one of its operations in a narrow dtype on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from opwright import tree

__all__ = ["in_float32", "lacks_dtype"]


def lacks_dtype(error: Exception) -> bool:
    """Whether torch has no such operation in a narrow dtype on a CPU."""
    text = str(error)
    return "not implemented for" in text or "Unsupported dtype" in text


def in_float32(
    reference: Callable[[Any], Sequence[torch.Tensor]], arguments: Sequence[Any]
) -> tuple[torch.Tensor, ...]:
    """The reference computed in float32, and its results rounded to the arguments' narrow dtype."""
    narrow = {t.dtype for t in tree.tensors(list(arguments)) if t.dtype in (torch.float16, torch.bfloat16)}
    results = reference(tree.map_tensors(lambda t: t.float() if t.dtype in narrow else t, list(arguments)))
    if len(narrow) != 1:
        return tuple(results)
    (dtype,) = narrow
    return tuple(t.to(dtype) if t.dtype is torch.float32 else t for t in results)
