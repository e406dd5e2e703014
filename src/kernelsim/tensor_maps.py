"""Tensor maps (``CUtensorMap``): the tensor and the box of it that a kernel's bulk copies move."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from kernelsim.arrays import CPU, Array, array_of
from kernelsim.errors import LaunchError

__all__ = ["TensorMap", "tensor_map"]

BYTES = 128
_MOST_DIMS = 5
_UNIT = 16  # of addresses, strides and rows, in bytes
_MARK = 0x70616D726F736E74  # ``tensor_map_mark`` of runtime/tensor_map.h
_DTYPES = (
    "uint8",
    "int8",
    "float8_e4m3fn",
    "float8_e5m2",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
)
# ``Number`` of runtime_calls.h, for reductions.
_NUMBERS = {"int32": 1, "int64": 3, "float16": 4, "bfloat16": 5, "float32": 6, "float64": 7}
_OTHER_NUMBER = 8
_SWIZZLES = (0, 32, 64, 128)


class TensorMap:
    """A tensor and the box of it that one bulk copy moves: the argument for a ``CUtensorMap`` parameter.

    Raises:
        LaunchError: the hardware has no such map.
    """

    def __init__(self, tensor: Any, box: Sequence[int], swizzle: int) -> None:
        if array_of(tensor) is None:
            raise LaunchError(f"tensor_map: what is mapped must be a tensor, got {type(tensor).__name__}")
        self.tensor, self.box, self.swizzle = tensor, tuple(box), swizzle
        wrong = _wrong(self.array, self.box, swizzle)
        if wrong is not None:
            raise LaunchError(f"{self!r}: {wrong[0]}", fix=wrong[1])

    def kernel_bytes(self, device: int) -> bytes:
        """The 128 bytes that a kernel gets on the CPU, whose number is -1.

        Raises:
            LaunchError: the tensor is on another device.
        """
        array = self.array
        if array.device != CPU:
            raise LaunchError(
                f"the tensor map is of a tensor on {array.device}, and the kernel runs elsewhere",
                fix="the tensors of a launch have to be on one device",
            )
        rank = len(array.shape)
        filled = [1] * (_MOST_DIMS - rank)
        packed = struct.pack(
            "<QQ3I5I5II5Q", _MARK, array.pointer, rank, array.itemsize, self.swizzle, *self.sizes, *filled,
            *reversed(self.box), *filled, _NUMBERS.get(array.dtype, _OTHER_NUMBER), *self.strides,
            *([0] * (_MOST_DIMS - rank)),
        )  # fmt: skip
        return packed.ljust(BYTES, b"\0")

    @property
    def array(self) -> Array:
        """The tensor as it is now."""
        found = array_of(self.tensor)
        assert found is not None  # see __init__
        return found

    @property
    def sizes(self) -> list[int]:
        """The tensor's, with the innermost first."""
        return list(reversed(self.array.shape))

    @property
    def strides(self) -> list[int]:
        """In bytes, with the innermost first."""
        array = self.array
        return [stride * array.itemsize for stride in reversed(array.strides)]

    def __repr__(self) -> str:
        return f"tensor_map({list(self.array.shape)}, box={self.box}, swizzle={self.swizzle})"


def tensor_map(tensor: Any, box: Sequence[int], *, swizzle: int = 0) -> TensorMap:
    """A ``CUtensorMap`` argument: bulk copies of a kernel move boxes of the tensor to and from shared memory.

    Args:
        tensor: of up to five dimensions, the last one contiguous.
        box: the extent of a copy in each dimension, in the tensor's order. (Coordinates in a kernel come in the other
            order, the innermost first.)
        swizzle: 0, 32, 64 or 128: the bytes within which pieces of 16 bytes are permuted in shared memory. A box's
            innermost extent then has as many.

    Raises:
        LaunchError: the hardware has no such map.
    """
    return TensorMap(tensor, box, swizzle)


def _wrong(array: Array, box: tuple[int, ...], swizzle: int) -> tuple[str, str] | None:
    """What the hardware's copies cannot do, and what to do about it."""
    rank, size = len(array.shape), array.itemsize
    if array.dtype not in _DTYPES:
        return f"the hardware has no elements of {array.dtype}", "view the tensor as another dtype of that size"
    if not 1 <= rank <= _MOST_DIMS or len(box) != rank:
        return "a map has one to five dimensions, and the box as many", "reshape the tensor, or the box"
    if array.size == 0:
        return "the tensor is empty", "do not launch the kernel then"
    if array.strides[-1] != 1 or any(stride * size % _UNIT or stride <= 0 for stride in array.strides[:-1]):
        return "the last dimension has to be contiguous, and the others' strides multiples of 16 bytes", "pad the rows"
    if array.pointer % _UNIT:
        return "the address is not a multiple of 16", "pass x.clone()"
    if not all(1 <= extent <= 256 for extent in box):
        return "a box has 1 to 256 elements in each dimension", "copy several boxes"
    if swizzle not in _SWIZZLES:
        return "the swizzle is 0, 32, 64 or 128 bytes", "choose one of these"
    if box[-1] * size % _UNIT or (swizzle and box[-1] * size != swizzle):
        wanted = f"{swizzle} bytes" if swizzle else "a multiple of 16 bytes"
        return f"the box's last dimension has to be {wanted}", "choose another box"
    return None
