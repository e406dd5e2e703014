"""Memory with guard bands around arguments and new tensors, and memory that ends where nothing can be read.

A kernel that writes or reads one element too far gives right results wherever its neighbour's memory is unused. Here
each tensor has a storage of its own between two bands of known bytes; on a CPU it can also lie at the edge of a page
that the processor refuses to read (as in B. Perens's Electric Fence), or in pages that it refuses to write.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import torch

from opwright import tree
from opwright.internals.compiler import DispatchMode

__all__ = ["BITS", "Edge", "GuardedMemory", "at_edge", "read_only"]

# What bands and uninitialised memory hold: all bits set, which is NaN, -1 or True; then ordinary numbers.
BITS = (0xFF, 0x3F)
# In bytes: so few that torch fills them without other threads.
_BAND = 1 << 13

# The functions of torch that allocate memory: those that leave it uninitialised, and those that fill it.
_UNINITIALISED = frozenset({"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"})
_FILLED = frozenset(
    {"zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full", "clone"}
)


@dataclass(frozen=True)
class _Block:
    """A tensor's storage between two bands: ``memory[_BAND:-_BAND]``, in bytes. ``name`` is that of an argument."""

    name: str
    tensor: torch.Tensor
    memory: torch.Tensor

    def written(self, bits: int, what: str) -> str | None:
        """What was written into the bands, and how far from the storage."""
        after = (self.memory[-_BAND:] != bits).nonzero().flatten()
        before = (self.memory[:_BAND] != bits).nonzero().flatten()
        if not len(after) and not len(before):
            return None
        side, places = ("past the end", after) if len(after) else ("before the start", before)
        nearest = int(after[0]) if len(after) else _BAND - 1 - int(before[-1])
        far = nearest // self.tensor.element_size() + 1
        return f"memory {side} of {what} was written: {len(places)} bytes, the nearest in element {far} beyond"


@dataclass
class GuardedMemory:
    """Tensors with guard bands, which hold ``bits`` in each byte, as does new memory that is not initialised."""

    device: str
    bits: int
    _blocks: list[_Block] = field(default_factory=list)

    def arguments(self, names: Sequence[str], values: Sequence[Any]) -> tuple[Any, ...]:
        """Copies of arguments with their layouts, each in guarded memory."""
        named = zip(names, values, strict=True)
        return tuple(tree.map_tensors(functools.partial(self._guarded, name), value) for name, value in named)

    def new_memory(self) -> Any:
        """A block in which the memory that torch's functions allocate is guarded."""
        return _Allocations(self)

    def allocated(self, tensor: torch.Tensor, *, initialised: bool) -> torch.Tensor:
        """A tensor like a new one, in guarded memory."""
        if tensor.device.type != torch.device(self.device).type or type(tensor) is not torch.Tensor:
            return tensor
        made = self._guarded("", tensor)
        if not initialised:
            bits = self.bits & 1 if tensor.dtype is torch.bool else self.bits
            self._blocks[-1].memory[_BAND:-_BAND].fill_(bits)
        return made

    def written(self, outputs: Sequence[Any]) -> str | None:
        """The first write outside of an argument, output or scratch tensor, or None."""
        numbers = {_address(t): i for i, t in enumerate(outputs) if isinstance(t, torch.Tensor) and t.numel()}
        for block in self._blocks:
            number = numbers.get(_address(block.tensor))
            allocated = f"output {number}" if number is not None else f"a new tensor of {list(block.tensor.shape)}"
            found = block.written(self.bits, f"argument {block.name!r}" if block.name else allocated)
            if found is not None:
                return found
        return None

    def _guarded(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        size = tensor.untyped_storage().nbytes()
        memory = torch.full((size + 2 * _BAND,), self.bits, dtype=torch.uint8, device=self.device)
        made = _copy_into(_with_own_storage(memory, size), tensor)
        self._blocks.append(_Block(name, made, memory))
        return made


class _Allocations(DispatchMode):  # type: ignore[misc]  # found at run time
    """Moves the results of functions that allocate into guarded memory."""

    def __init__(self, memory: GuardedMemory) -> None:
        super().__init__()
        self._memory = memory

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name in _UNINITIALISED or name in _FILLED:
            return self._memory.allocated(result, initialised=name in _FILLED)
        return result


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@dataclass(frozen=True)
class _Bytes:
    """Bytes on a GPU, as other libraries describe them to torch."""

    memory: torch.Tensor
    start: int
    size: int

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        address = self.memory.data_ptr() + self.start
        return {"shape": (self.size,), "typestr": "|u1", "data": (address, False), "version": 2}


def _with_own_storage(memory: torch.Tensor, size: int) -> torch.UntypedStorage:
    """The bytes between the bands as a storage, so that a tensor in it has no larger one."""
    if memory.device.type == "cpu":
        return torch.from_numpy(memory.numpy()[_BAND : _BAND + size]).untyped_storage()
    return torch.as_tensor(_Bytes(memory, _BAND, size), device=memory.device).untyped_storage()


def _copy_into(storage: torch.UntypedStorage, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, with its whole storage, in another storage of the same size."""
    bytes_of = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    if storage.nbytes():
        target = bytes_of.new_empty(0).set_(storage)
        target.copy_(bytes_of.set_(tensor.untyped_storage()))
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    return made.conj() if tensor.is_conj() else made


# -- at the edge of memory --------------------------------------------------------------------------------------------


class Edge(StrEnum):
    """The side of a tensor on which nothing can be read."""

    END = "past the end"
    START = "before the start"


def at_edge(edge: Edge, alignment: int, tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor on the CPU beside a page that cannot be accessed: doing so ends the process with SIGSEGV.

    Args:
        alignment: the address is a multiple of this many bytes, and of the size of an element; fewer than these lie
            between its end and the page.

    Raises:
        OSError: the system refuses to protect the page.
    """
    size = tensor.untyped_storage().nbytes()
    aligned = size + -size % max(alignment, tensor.element_size())
    pages = _whole_pages(aligned)
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    protected, start = (pages, pages - aligned) if edge is Edge.END else (0, mmap.PAGESIZE)
    _protect(memory, protected, mmap.PAGESIZE, _PROT_NONE)
    return _copy_into(_storage_in(memory, start, size), tensor)


def read_only(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor on the CPU that can only be read: a write ends the process with SIGSEGV, also one that is
    undone before the call returns.

    Raises:
        OSError: the system refuses to protect its pages.
    """
    size = tensor.untyped_storage().nbytes()
    pages = _whole_pages(max(size, 1))
    memory = mmap.mmap(-1, pages)
    copy = _copy_into(_storage_in(memory, 0, size), tensor)
    _protect(memory, 0, pages, mmap.PROT_READ)
    return copy


def _whole_pages(size: int) -> int:
    return size + -size % mmap.PAGESIZE


def _storage_in(memory: mmap.mmap, start: int, size: int) -> torch.UntypedStorage:
    return torch.from_numpy(np.frombuffer(memory, np.uint8, size, start)).untyped_storage()


def _protect(memory: mmap.mmap, start: int, size: int, protection: int) -> None:
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + start
    if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), protection) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


_PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)
