"""What NumPy knows of an array and a tensor does not: whether it is a scalar, whose memory it shares, whether it is
read-only.

NumPy copies where torch gives views, and the other way around. A result whose memory torch cannot share although NumPy
does (``a[::-1]``) is a *detached view*: it may be read until its source is written, and not be written itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from opwright.internals.tensors import base_of

__all__ = [
    "Facts", "Memory", "NotLikeNumpyError", "facts_of", "is_scalar", "mark", "mark_detached", "note_write",
    "refuse_stale",
]  # fmt: skip

_ATTRIBUTE = "_opwright_numpy_facts"


class NotLikeNumpyError(NotImplementedError):
    """A step on tensors that could give something else than NumPy."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(f"{message}; {fix}")
        self.message = message
        self.fix = fix


@dataclass(eq=False)
class Memory:
    """The memory that an array and its views share. ``source`` is the memory that it would be part of in NumPy."""

    writes: int = 0
    source: Memory | None = None
    source_writes: int = 0
    how: str = ""

    def is_stale(self) -> bool:
        """Whether its source was written since it was copied from there."""
        source = self.source
        return source is not None and (source.writes != self.source_writes or source.is_stale())


@dataclass(eq=False)
class Facts:
    """Facts about one tensor."""

    memory: Memory
    scalar: bool = False
    readonly: bool = False


def facts_of(tensor: torch.Tensor) -> Facts:
    """The facts about a tensor: those noted, those of the tensor that it is a view of, or those of a new array."""
    found: Facts | None = getattr(tensor, _ATTRIBUTE, None)
    if found is None:
        base = base_of(tensor)
        noted: Facts | None = getattr(base, _ATTRIBUTE, None) if base is not None else None
        found = Facts(Memory()) if noted is None else Facts(noted.memory, readonly=noted.readonly)
        if base is not None and noted is None:
            setattr(base, _ATTRIBUTE, Facts(found.memory))
        setattr(tensor, _ATTRIBUTE, found)
    return found


def is_scalar(value: Any) -> bool:
    """Whether NumPy has a number here and no array."""
    return isinstance(value, torch.Tensor) and value.dim() == 0 and facts_of(value).scalar


def mark(
    tensor: torch.Tensor, *, of: torch.Tensor | None = None, scalar: bool = False, readonly: bool = False
) -> torch.Tensor:
    """Note facts about a tensor that an operation has made; ``of`` is the array that it is a view of."""
    memory = Memory() if of is None else facts_of(of).memory
    readonly = readonly or (of is not None and facts_of(of).readonly)
    setattr(tensor, _ATTRIBUTE, Facts(memory, scalar and tensor.dim() == 0, readonly))
    return tensor


def mark_detached(tensor: torch.Tensor, of: torch.Tensor, how: str) -> torch.Tensor:
    """Note that a tensor is a copy where NumPy has a view of ``of``."""
    source = facts_of(of)
    memory = Memory(source=source.memory, source_writes=source.memory.writes, how=how)
    setattr(tensor, _ATTRIBUTE, Facts(memory, readonly=source.readonly))
    return tensor


def refuse_stale(tensor: torch.Tensor) -> None:
    """Refuse to read a detached view whose source was written.

    Raises:
        NotLikeNumpyError: the tensor has values of before the write.
    """
    memory = facts_of(tensor).memory
    if memory.is_stale():
        raise NotLikeNumpyError(
            f"{memory.how} is a view in NumPy and a copy here, and the array was written since",
            "copy it (.copy()) before the write, or take it again after the write",
        )


def note_write(tensor: torch.Tensor) -> None:
    """Note that an array is written.

    Raises:
        ValueError: NumPy's error for read-only arrays.
        TypeError: NumPy's error for numbers.
        NotLikeNumpyError: the write would not reach the array that this is a view of.
    """
    facts = facts_of(tensor)
    if facts.scalar and tensor.dim() == 0:
        raise TypeError("a NumPy number does not support item assignment")
    if facts.readonly:
        raise ValueError("assignment destination is read-only")
    if facts.memory.source is not None:
        raise NotLikeNumpyError(
            f"{facts.memory.how} is a view in NumPy and a copy here; the array behind it would not be written",
            "write to the array itself, or copy the view first (.copy())",
        )
    facts.memory.writes += 1
