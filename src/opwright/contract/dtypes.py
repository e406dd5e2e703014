"""Dtypes by the short names that messages and records use, elements of any of them as bytes, zeros by their signs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["TakenDtypes", "element_bytes", "equal_bytes", "is_floating", "short", "zeros_in"]

# Those that a kernel takes: of all arguments whose annotation leaves a choice, or of single ones by name; None for all
# that the contract admits.
TakenDtypes = Sequence[torch.dtype] | Mapping[str, Sequence[torch.dtype]] | None


def short(dtype: torch.dtype) -> str:
    """``torch.float32`` → ``float32``."""
    return str(dtype).removeprefix("torch.")


def is_floating(dtype: torch.dtype) -> bool:
    """Whether it holds floating-point or complex numbers."""
    return dtype.is_floating_point or dtype.is_complex


def element_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the elements in order, as one row of bytes: equal for elements of equal bits, NaN among them. Pending
    conjugations and negations are done.

    Shape (numel × itemsize,), uint8, on the same device. Torch takes strided memory for contiguous where a dim has one
    element, and then refuses to view it as bytes: hence always a copy.
    """
    return tensor.detach().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def equal_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two rows of bytes of one length are equal. Eight at a time, which takes a tenth of the time of one."""
    whole = len(a) // 8 * 8
    if a.storage_offset() % 8 or b.storage_offset() % 8:
        return torch.equal(a, b)
    words = (t[:whole].view(torch.int64) for t in (a, b))
    return torch.equal(a[whole:], b[whole:]) and torch.equal(*words)


def zeros_in(number: Any) -> str:
    """The text of a float or complex number that has a zero in it; "" of any other value. -0.0 equals 0.0, so that a
    comparison does not tell them apart, and is another number to an operation."""
    if isinstance(number, complex | np.complexfloating):
        has_one = 0 in (number.real, number.imag)
    else:
        has_one = isinstance(number, float | np.floating) and bool(number == 0)
    return repr(number) if has_one else ""
