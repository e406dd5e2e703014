"""What the checks of a call depend on, as the key of a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from opwright.contract.contract import Contract

__all__ = ["static_key"]


def static_key(contract: Contract, arguments: Sequence[Any]) -> Any:
    """Shapes, dtypes, devices and layouts, and other arguments by type and value; by type only, where the contract has
    no condition on a number."""
    free = contract.free_numbers
    return tuple(
        [
            (a.shape, a.dtype, a.device, a.layout)
            if isinstance(a, torch.Tensor)
            else type(a)
            if i in free
            else _key_of(a)
            for i, a in enumerate(arguments)
        ]
    )


def _key_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.device, value.layout
    if isinstance(value, list | tuple):
        return tuple(map(_key_of, value))
    return type(value), value
