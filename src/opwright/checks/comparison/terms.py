"""How many terms stand behind an element of a result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from opwright import tree
from opwright.contract import derive
from opwright.contract.contract import Contract

__all__ = ["reduction_length"]


def reduction_length(contract: Contract, arguments: Sequence[Any], results: Sequence[torch.Tensor]) -> int:
    """The approximate number of terms in one output element: FLOPs of the reference per output element, or its
    longest sum; all elements, if the reference cannot be traced (NumPy functions that torch lacks)."""
    outputs = sum(result.numel() for result in results)
    try:
        work, longest = derive.work(contract, arguments)
    except Exception:  # the reference may raise anything on meta tensors
        return max(1, *(t.numel() for t in tree.tensors(list(arguments))))
    return max(1, longest, math.ceil(work / max(outputs, 1)))
