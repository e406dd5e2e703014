"""The memory that a caller passes: NumPy arrays and torch tensors, in one form. Imports no torch."""

from __future__ import annotations

import functools
import mmap
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelsim.errors import LaunchError

__all__ = ["CPU", "Array", "array_of", "bytes_of_elements", "device_of", "dtype_of", "storage_of", "zeros_on_demand"]

CPU = "cpu"


@dataclass(eq=False, slots=True)
class Array:
    """A NumPy array or a torch tensor. Messages call both a tensor. (Not frozen: that would take a launch longer.)

    Attributes:
        value: what the caller passed.
        pointer: the address of the element with index 0 in each dimension.
        size: the number of its elements.
        begin: the lowest address of an element.
        end: the address after the highest element.
        strides: in elements.
        dtype: the name, such as ``float32``.
        device: as torch names it; ``cpu`` for a NumPy array.
    """

    value: Any
    pointer: int
    size: int
    begin: int
    end: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    dtype: str
    device: str

    @property
    def span(self) -> int:
        """From the first element to the last in memory, those between included."""
        return (self.end - self.begin) // self.itemsize


def array_of(value: Any) -> Array | None:
    """The form of a NumPy array or a torch tensor; None for anything else.

    Raises:
        LaunchError: a NumPy array whose elements are not a whole number of elements apart.
    """
    if isinstance(value, int | float):
        return None
    if isinstance(value, np.ndarray):
        item = value.dtype.itemsize
        if any(stride % item for stride in value.strides if item):
            raise LaunchError(
                f"the strides of an array must be multiples of {item} bytes, got {value.strides}",
                fix="pass a copy: numpy.ascontiguousarray(x)",
            )
        strides = tuple(stride // item for stride in value.strides) if item else value.strides
        place, dtype, size = value.ctypes.data, value.dtype.name, value.size
        return Array(value, place, size, *_ends(place, size, value.shape, strides, item), value.shape, strides, item,
                     dtype, CPU)  # fmt: skip
    if not _is_torch_tensor(value):
        return None
    item, place, size = value.element_size(), value.data_ptr(), value.numel()
    shape, strides = tuple(value.shape), value.stride()
    ends: tuple[int, int] = (
        (place, place + size * item) if value.is_contiguous() else _ends(place, size, shape, strides, item)
    )
    return Array(value, place, size, *ends, shape, strides, item, _name(value.dtype), _device(value))


def device_of(value: Any) -> str | None:
    """The device of a NumPy array or a torch tensor; None for anything else."""
    if _is_torch_tensor(value):
        return _device(value)
    return CPU if isinstance(value, np.ndarray) else None


def dtype_of(value: Any) -> str | None:
    """The dtype of a NumPy array or a torch tensor; None for anything else."""
    if _is_torch_tensor(value):
        return _name(value.dtype)
    return value.dtype.name if isinstance(value, np.ndarray) else None


def _is_torch_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # who has a tensor has imported it
    return torch is not None and isinstance(value, torch.Tensor)


def _device(tensor: Any) -> str:
    return CPU if tensor.is_cpu else str(tensor.device)


@functools.cache
def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _ends(pointer: int, size: int, shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> tuple[int, int]:
    """The lowest address of an element, and that after the highest."""
    if size == 0:
        return pointer, pointer
    steps = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    begin = pointer + sum(step for step in steps if step < 0) * item
    return begin, pointer + (sum(step for step in steps if step > 0) + 1) * item


def storage_of(array: Array) -> tuple[int, int]:
    """The memory that a tensor is a part of: its first address, and its bytes."""
    if isinstance(array.value, np.ndarray):
        whole = array.value
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        found = array_of(whole)
        assert found is not None  # it is an array
        return found.begin, found.end - found.begin
    storage = array.value.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


# More elements are hardly all used: those of a view whose rows lie far apart.
_MANY = 1 << 26
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # from Python 3.13; Linux's number


def zeros_on_demand(count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Zeros, of which many take no memory before they are written."""
    if count < _MANY:
        return np.zeros(count, dtype=dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    return np.frombuffer(mmap.mmap(-1, count * np.dtype(dtype).itemsize, flags=flags), dtype=dtype)


def bytes_of_elements(begin: int, end: int, arrays: Sequence[Array]) -> np.ndarray[Any, Any] | None:
    """One byte for each byte between two addresses: whether it belongs to an element of these arrays. None if no array
    reaches there."""
    overlapping = [array for array in arrays if array.size and array.begin < end and begin < array.end]
    if not overlapping:
        return None
    first, last = min(begin, *(a.begin for a in overlapping)), max(end, *(a.end for a in overlapping))
    marks = zeros_on_demand(last - first, np.uint8)
    for array in overlapping:
        strides = tuple(stride * array.itemsize for stride in array.strides)
        place = marks[array.pointer - first :]
        np.lib.stride_tricks.as_strided(place, (*array.shape, array.itemsize), (*strides, 1))[...] = 1
    return marks[begin - first : end - first]
