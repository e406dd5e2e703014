"""Comparing results bit by bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from opwright.checks.comparison.tolerance import describe_difference
from opwright.contract.dtypes import element_bytes, equal_bytes

__all__ = ["different_bits"]


def different_bits(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> str | None:
    """Where results ``b`` differ from ``a`` in any bit, -0.0 from 0.0 and NaN from NaN included; None if nowhere."""
    for i, pair in enumerate(zip(a, b, strict=True)):
        x, y = (t.detach().cpu() for t in pair)
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"output {i} has another shape or dtype"
        bits = [element_bytes(t) for t in (x, y)]
        if not equal_bytes(*bits):
            differ = (bits[0] != bits[1]).view(-1, x.element_size()).any(1).view(x.shape)
            return f"output {i}: {describe_difference(y, x, differ)}"
    return None
