"""The memory of a launch: the arguments as the kernel gets them, and what it may access."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelsim.arrays import Array, array_of, bytes_of_elements, dtype_of, storage_of, zeros_on_demand
from kernelsim.errors import LaunchError

__all__ = ["Memory", "Region", "Unwritten", "is_descriptor"]

_MOST_DIMS = 5


class Region(ctypes.Structure):
    """As in ``kernelsim_triton.h``."""

    _fields_ = (
        *(("begin", ctypes.c_uint64), ("end", ctypes.c_uint64), ("shift", ctypes.c_uint32)),
        *(("constant", ctypes.c_uint32), ("written", ctypes.c_void_p)),
        *(
            ("writer", ctypes.c_void_p),
            ("reader", ctypes.c_void_p),
            ("element", ctypes.c_void_p),
            ("read_only", ctypes.c_void_p),
        ),
    )


class _Descriptor(ctypes.Structure):
    """As in ``kernelsim_triton.h``."""

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
    return type(value).__name__ == "TensorDescriptor" and dtype_of(getattr(value, "base", None)) is not None


class Unwritten:
    """A tensor without values (``torch.empty``), and which of its elements have been written."""

    def __init__(self, tensor: Any) -> None:
        array = array_of(tensor)
        if array is None:
            raise LaunchError(f"what is uninitialised must be a tensor, got {type(tensor).__name__}")
        self.begin = array.begin
        self.written = np.zeros(array.size, dtype=np.uint8)


@dataclass
class Memory:
    """What a launch gets and may access.

    Attributes:
        given: tensors from whose memory the launcher's came; None if what is passed is all that may be accessed.
        uninitialised: tensors without values.
        read_only: tensors that the kernel must not write.
        words: the kernel's parameters; a descriptor is followed by its sizes and strides.
        regions: what may be accessed, with who wrote and who read each element.
        tensors: of each region, with the argument's name.
        sources: for each parameter its region, or -1.
    """

    given: Sequence[Any] | None = None
    uninitialised: Sequence[Unwritten] = ()
    read_only: Sequence[Array] = ()
    words: list[Any] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    tensors: list[tuple[str, Array]] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    _kept: list[np.ndarray[Any, Any]] = field(default_factory=list)

    def add(self, name: str, value: Any, types: Sequence[str]) -> None:
        """Add an argument. ``types`` are those of the parameters that are left."""
        described = is_descriptor(value)
        array = array_of(value.base if described else value)
        source = -1 if array is None or not array.size else self._region(name, array)
        if described:
            assert array is not None  # as is_descriptor has found
            shape, strides = ((ctypes.c_int64 * _MOST_DIMS)(*n) for n in (value.shape, value.strides))
            self.words.append(_Descriptor(array.pointer, shape, strides, getattr(value, "padding", "zero") == "nan"))
            values = [*value.shape, *value.strides]
            self.words += [_C_TYPES[t](n) for t, n in zip(types[1 : len(values) + 1], values, strict=True)]
            self.sources += [source] + [-1] * len(values)
        else:
            self.words.append(_C_TYPES[types[0]](value if array is None else array.pointer))
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
            records = [zeros_on_demand(count, dtype) for dtype in (np.int64, np.int32, np.int32)]
            self._kept += records
            region.constant = False
            region.writer, region.reader, region.element = (record.ctypes.data for record in records)

    def _region(self, name: str, array: Array) -> int:
        begin, count = _extent(array, self.given)
        item = array.itemsize
        end = begin + count * item
        for i, region in enumerate(self.regions):
            if region.begin <= begin and end <= region.end:
                return i  # a view of another argument
        written = next((u.written for u in self.uninitialised if u.begin == begin and len(u.written) >= count), None)
        address = None if written is None else written.ctypes.data
        number = len(self.regions)
        region = Region(begin, end, item.bit_length() - 1, constant=True, written=address)
        kept = bytes_of_elements(begin, end, self.read_only)
        if kept is not None:
            self._kept.append(kept)
            region.read_only = kept.ctypes.data
        self.regions.append(region)
        self.tensors.append((name, array))
        return number


def _extent(array: Array, given: Sequence[Any] | None) -> tuple[int, int]:
    """Where the memory begins that may be accessed through a tensor, and how many elements it has.

    A launcher may pass a part of what it was given, or of what it allocated, and its kernel reach the rest from there.
    """
    begin, end, item = array.begin, array.end, array.itemsize
    if given is None:
        return begin, array.span
    storage, size = storage_of(array)
    others = [other for t in given if (other := array_of(t)) is not None and other.size]
    same = [other for other in others if storage_of(other)[0] == storage]
    for whole in same:
        if whole.begin <= begin and end <= whole.end:
            return whole.begin, (whole.end - whole.begin) // item
    return (begin, array.span) if same else (storage, size // item)
