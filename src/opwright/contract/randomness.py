"""Finds the operations of a reference that draw random numbers."""

from __future__ import annotations

from typing import Any

import torch

from opwright import tree
from opwright.internals.compiler import DispatchMode

__all__ = ["RandomOperations"]


class RandomOperations(DispatchMode):  # type: ignore[misc]
    """A block that notes the first operation that draws from torch's own generators. One that is passed a generator
    draws the same numbers for the same seed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_seeded = any(isinstance(v, torch.Generator) for v in tree.leaves([*args, *(kwargs or {}).values()]))
        if torch.Tag.nondeterministic_seeded in func.tags and not is_seeded:
            self.first = self.first or func.overloadpacket.__name__
        return func(*args, **(kwargs or {}))
