"""Finds the operations of a reference that draw random numbers."""

from __future__ import annotations

from typing import Any

import torch

from opwright.internals.compiler import DispatchMode
from opwright.internals.registration import named_arguments

__all__ = ["RandomOperations"]


class RandomOperations(DispatchMode):  # type: ignore[misc]
    """A block that notes the first operation that draws from torch's own generators. One that is passed a generator
    draws the same numbers for the same seed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.first and torch.Tag.nondeterministic_seeded in func.tags and _draws(func, args, kwargs or {}):
            self.first = func.overloadpacket.__name__
        return func(*args, **(kwargs or {}))


# Arguments of operations, such as attention and rrelu, with which they draw nothing.
_SWITCHES = {"dropout_p": 0, "dropout": 0, "p": 0, "train": False, "training": False}


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    named = named_arguments(func, args, kwargs)
    is_seeded = any(isinstance(value, torch.Generator) for value in (*args, *named.values()))
    is_off = any(name in named and named[name] == off for name, off in _SWITCHES.items())
    return not is_seeded and not is_off
