"""The memory that a simulated launch may access: the elements of its tensors, and which of them are written."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernelsim.arrays import Array, array_of, bytes_of_elements
from kernelsim.cuda_sim.abi import Region
from kernelsim.cuda_sim.findings import MemoryRange
from kernelsim.errors import LaunchError

__all__ = ["Unwritten", "address_of", "known_memory", "without_overlap"]


class Unwritten:
    """An uninitialised tensor (``torch.empty``), across several launches.

    Reading a byte of it that no kernel has written is a finding. Pass the same object to every launch that takes the
    tensor; for a single launch the tensor itself is enough.
    """

    def __init__(self, tensor: Any) -> None:
        array = array_of(tensor)
        if array is None:
            raise LaunchError(f"what is uninitialised must be a tensor, got {type(tensor).__name__}")
        self.tensor = tensor
        self.place = array.begin, array.end
        self.written = bytearray(array.end - array.begin)


def _is_dense(array: Array) -> bool:
    """Whether every byte of its span belongs to an element."""
    return array.size * array.itemsize >= array.end - array.begin


def known_memory(
    tensors: Sequence[tuple[int, Array]], uninitialised: Sequence[Any | Unwritten], read_only: Sequence[Any] = ()
) -> tuple[MemoryRange, ...]:
    """The memory that the kernel may access: the spans of its tensors, overlapping ones merged."""
    fresh = [u if isinstance(u, Unwritten) else Unwritten(u) for u in uninitialised]
    named = [(position, array) for position, array in tensors if array.size]
    named.sort(key=lambda one: (one[1].begin, one[1].end, one[0]))
    groups: list[list[tuple[int, Array]]] = []
    for position, array in named:
        if groups and array.begin < max(other.end for _, other in groups[-1]):
            groups[-1].append((position, array))
        else:
            groups.append([(position, array)])
    kept = [one for tensor in read_only if (one := array_of(tensor)) is not None]
    return tuple(_merge(group, fresh, kept) for group in groups)


def _merge(group: list[tuple[int, Array]], fresh: Sequence[Unwritten], kept: Sequence[Array]) -> MemoryRange:
    arrays = [array for _, array in group]
    begin, end = arrays[0].begin, max(array.end for array in arrays)
    inside = None if any(map(_is_dense, arrays)) else bytes_of_elements(begin, end, arrays)
    written = next((u.written for u in fresh if len(group) == 1 and u.place == (begin, end)), None)
    granule = min(array.itemsize for array in arrays)
    return MemoryRange(begin, end, granule, tuple(group), written, inside, bytes_of_elements(begin, end, kept))


def address_of(memory: bytearray | np.ndarray[Any, Any] | None) -> int | None:
    """Where it is; None for nothing."""
    if memory is None:
        return None
    if isinstance(memory, np.ndarray):
        return memory.ctypes.data
    return ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory))


def without_overlap(regions: list[Region]) -> list[Region]:
    """Of regions in the order of their beginnings, those that begin in no other one before."""
    kept: list[Region] = []
    for region in regions:
        if not kept or region.begin >= kept[-1].end:
            kept.append(region)
    return kept
