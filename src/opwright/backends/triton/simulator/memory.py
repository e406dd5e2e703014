"""The memory of a launch: the arguments as the kernel gets them, and what it may access."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Memory", "Region", "element_count", "is_descriptor"]

_MOST_DIMS = 5


class Region(ctypes.Structure):
    """As in ``opwright_triton.h``."""

    _fields_ = (
        *(("begin", ctypes.c_uint64), ("end", ctypes.c_uint64), ("shift", ctypes.c_uint32)),
        *(("constant", ctypes.c_uint32), ("written", ctypes.c_void_p)),
        *(("writer", ctypes.c_void_p), ("reader", ctypes.c_void_p)),
    )


class _Descriptor(ctypes.Structure):
    """As in ``opwright_triton.h``."""

    _fields_ = (
        ("base", ctypes.c_uint64),
        *((name, ctypes.c_int64 * _MOST_DIMS) for name in ("shape", "strides")),
        ("nan", ctypes.c_bool),
    )


_C_TYPES = {"bool": ctypes.c_bool, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "float": ctypes.c_float,
            "int8_t": ctypes.c_int8, "int16_t": ctypes.c_int16, "double": ctypes.c_double,
            "P": ctypes.c_uint64}  # fmt: skip


def is_descriptor(value: Any) -> bool:
    """Whether it is a ``triton.tools.tensor_descriptor.TensorDescriptor``."""
    return type(value).__name__ == "TensorDescriptor" and isinstance(getattr(value, "base", None), torch.Tensor)


def element_count(tensor: torch.Tensor) -> int:
    """From a tensor's first element to its last in memory, those between included."""
    return sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1


@dataclass
class Memory:
    """What a launch gets and may access.

    Attributes:
        words: the kernel's parameters; a descriptor is followed by its sizes and strides.
        regions: what may be accessed, with who wrote and who read each element.
        tensors: of each region, with the argument's name.
        sources: for each parameter its region, or -1.
    """

    words: list[Any] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    tensors: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    _kept: list[torch.Tensor] = field(default_factory=list)

    def add(
        self, name: str, value: Any, types: Sequence[str], given: Sequence[torch.Tensor] | None,
        uninitialised: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ) -> None:  # fmt: skip
        """Add an argument.

        Args:
            types: those of the parameters that are left.
            given: tensors from whose memory the launcher's came; None if what is passed is all that may be accessed.
            uninitialised: tensors without values, and which of their elements have been written.
        """
        tensor = value.base if is_descriptor(value) else value
        source = -1
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            source = self._region(name, tensor, given, uninitialised)
        if is_descriptor(value):
            shape, strides = ((ctypes.c_int64 * _MOST_DIMS)(*n) for n in (value.shape, value.strides))
            self.words.append(
                _Descriptor(tensor.data_ptr(), shape, strides, getattr(value, "padding", "zero") == "nan")
            )
            values = [*value.shape, *value.strides]
            self.words += [_C_TYPES[t](n) for t, n in zip(types[1 : len(values) + 1], values, strict=True)]
            self.sources += [source] + [-1] * len(values)
        else:
            self.words.append(_C_TYPES[types[0]](value.data_ptr() if isinstance(value, torch.Tensor) else value))
            self.sources.append(source)

    def record(self, stored: Collection[int] | None, *, checked: bool) -> None:
        """Have the accesses to what the kernel writes recorded, once all arguments are added.

        Args:
            stored: the parameters through which it stores; None if that is not known.
            checked: whether accesses are recorded at all.
        """
        written = {-1} if stored is None else {self.sources[k] for k in stored}
        if -1 in written:
            written = set(range(len(self.regions)))
        for number in written if checked else ():
            region = self.regions[number]
            count = (region.end - region.begin) >> region.shift
            writer, reader = (_zeros(count, dtype) for dtype in (torch.int64, torch.int32))
            self._kept += [writer, reader]
            region.constant, region.writer, region.reader = False, writer.data_ptr(), reader.data_ptr()

    def _region(
        self, name: str, tensor: torch.Tensor, given: Sequence[torch.Tensor] | None,
        uninitialised: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ) -> int:  # fmt: skip
        begin, count = _extent(tensor, given)
        item = tensor.element_size()
        end = begin + count * item
        for i, region in enumerate(self.regions):
            if region.begin <= begin and end <= region.end:
                return i  # a view of another argument
        written = next((w for t, w in uninitialised if t.data_ptr() == begin and len(w) >= count), None)
        address = None if written is None else written.data_ptr()
        number = len(self.regions)
        self.regions.append(Region(begin, end, item.bit_length() - 1, constant=True, written=address))
        self.tensors.append((name, tensor))
        return number


# More elements are hardly all used: those of a view whose rows lie far apart.
_MANY = 1 << 26
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # from Python 3.13; Linux's number


def _zeros(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros, of which many take no memory before they are written."""
    if count < _MANY:
        return torch.zeros(count, dtype=dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    return torch.frombuffer(mmap.mmap(-1, count * dtype.itemsize, flags=flags), dtype=dtype)


def _extent(tensor: torch.Tensor, given: Sequence[torch.Tensor] | None) -> tuple[int, int]:
    """Where the memory begins that may be accessed through a tensor, and how many elements it has.

    A launcher may pass a part of what it was given, or of what it allocated, and its kernel reach the rest from there.
    """
    item = tensor.element_size()
    begin, count = tensor.data_ptr(), element_count(tensor)
    if given is None:
        return begin, count
    storage = tensor.untyped_storage()
    same = [t for t in given if t.numel() and t.untyped_storage().data_ptr() == storage.data_ptr()]
    for whole in same:
        first, end = whole.data_ptr(), whole.data_ptr() + element_count(whole) * whole.element_size()
        if first <= begin and begin + count * item <= end:
            return first, (end - first) // item
    return (begin, count) if same else (storage.data_ptr(), storage.nbytes() // item)
