"""Tensor maps (``CUtensorMap``): the tensor and the box of it that a kernel's bulk copies move."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

import torch

from opwright.errors import LaunchError

__all__ = ["TensorMap", "tensor_map"]

_BYTES = 128
_MOST_DIMS = 5
_UNIT = 16  # of addresses, strides and rows, in bytes
_MARK = 0x70616D726F736E74  # ``tensor_map_mark`` of the simulator's runtime/tensor_map.h
# CUtensorMapDataType and CUtensorMapSwizzle of the driver, without their common beginning.
_TYPES = {
    torch.uint8: "UINT8", torch.int8: "UINT8", torch.float8_e4m3fn: "UINT8", torch.float8_e5m2: "UINT8",
    torch.int32: "INT32", torch.int64: "INT64", torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16",
    torch.float32: "FLOAT32", torch.float64: "FLOAT64",
}  # fmt: skip
# ``Number`` of the simulator's runtime_calls.h, for reductions.
_NUMBERS = {
    torch.int32: 1, torch.int64: 3, torch.float16: 4, torch.bfloat16: 5, torch.float32: 6, torch.float64: 7,
}  # fmt: skip
_OTHER_NUMBER = 8
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


class TensorMap:
    """A tensor and the box of it that one bulk copy moves: the argument for a ``CUtensorMap`` parameter."""

    def __init__(self, tensor: torch.Tensor, box: tuple[int, ...], swizzle: int) -> None:
        self.tensor, self.box, self.swizzle = tensor, box, swizzle

    def kernel_bytes(self, device: int) -> bytes:
        """The 128 bytes that a kernel gets on a GPU, or in the simulator (-1).

        Raises:
            LaunchError: the tensor is on another device.
        """
        if self.tensor.get_device() != device:
            raise LaunchError(
                f"the tensor map is of a tensor on {self.tensor.device}, and the kernel runs elsewhere",
                fix="the tensors of a launch have to be on one device",
            )
        return self._for_simulator() if device < 0 else self._by_driver()

    # The innermost dimension comes first in a tensor map.

    @property
    def _sizes(self) -> list[int]:
        return list(reversed(self.tensor.shape))

    @property
    def _strides(self) -> list[int]:
        """In bytes."""
        return [stride * self.tensor.element_size() for stride in reversed(self.tensor.stride())]

    def _for_simulator(self) -> bytes:
        rank = self.tensor.dim()
        filled = [*([1] * (_MOST_DIMS - rank))]
        packed = struct.pack(
            "<QQ3I5I5II5Q", _MARK, self.tensor.data_ptr(), rank, self.tensor.element_size(), self.swizzle,
            *self._sizes, *filled, *reversed(self.box), *filled, _NUMBERS.get(self.tensor.dtype, _OTHER_NUMBER),
            *self._strides, *([0] * (_MOST_DIMS - rank)),
        )  # fmt: skip
        return packed.ljust(_BYTES, b"\0")

    def _by_driver(self) -> bytes:
        from cuda.bindings import driver

        rank = self.tensor.dim()
        error, made = driver.cuTensorMapEncodeTiled(
            getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[self.tensor.dtype]}"),
            rank,
            self.tensor.data_ptr(),
            [driver.cuuint64_t(size) for size in self._sizes],
            [driver.cuuint64_t(stride) for stride in self._strides[1:]],
            [driver.cuuint32_t(size) for size in reversed(self.box)],
            [driver.cuuint32_t(1)] * rank,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[self.swizzle]}"),
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        if error != driver.CUresult.CUDA_SUCCESS:
            raise LaunchError(
                f"the driver makes no tensor map of {self!r}: {error}", fix="it needs a GPU of 9.0 or later"
            )
        return ctypes.string_at(int(made.getPtr()), _BYTES)

    def __repr__(self) -> str:
        return f"tensor_map({list(self.tensor.shape)}, box={self.box}, swizzle={self.swizzle})"


def tensor_map(tensor: torch.Tensor, box: Sequence[int], *, swizzle: int = 0) -> TensorMap:
    """A ``CUtensorMap`` argument: bulk copies of a kernel move boxes of the tensor to and from shared memory.

    Args:
        tensor: on the GPU, or on the CPU for the simulator; of up to five dimensions, the last one contiguous.
        box: the extent of a copy in each dimension, in the tensor's order. (Coordinates in a kernel come in the other
            order, the innermost first.)
        swizzle: 0, 32, 64 or 128: the bytes within which pieces of 16 bytes are permuted in shared memory. A box's
            innermost extent then has as many.

    Raises:
        LaunchError: the hardware has no such map.
    """
    made = TensorMap(tensor, tuple(box), swizzle)
    wrong = _wrong(tensor, made.box, swizzle)
    if wrong is not None:
        raise LaunchError(f"{made!r}: {wrong[0]}", fix=wrong[1])
    return made


def _wrong(tensor: torch.Tensor, box: tuple[int, ...], swizzle: int) -> tuple[str, str] | None:
    """What the hardware's copies cannot do, and what to do about it."""
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()]
    if tensor.dtype not in _TYPES:
        return f"the hardware has no elements of {tensor.dtype}", "view the tensor as another dtype of that size"
    if not 1 <= tensor.dim() <= _MOST_DIMS or len(box) != tensor.dim():
        return "a map has one to five dimensions, and the box as many", "reshape the tensor, or the box"
    if tensor.numel() == 0:
        return "the tensor is empty", "do not launch the kernel then"
    if tensor.stride(-1) != 1 or any(stride % _UNIT or stride <= 0 for stride in strides[:-1]):
        return "the last dimension has to be contiguous, and the others' strides multiples of 16 bytes", "pad the rows"
    if tensor.data_ptr() % _UNIT:
        return "the address is not a multiple of 16", "pass x.clone()"
    if not all(1 <= extent <= 256 for extent in box):
        return "a box has 1 to 256 elements in each dimension", "copy several boxes"
    if swizzle not in _SWIZZLES:
        return "the swizzle is 0, 32, 64 or 128 bytes", "choose one of these"
    if box[-1] * size % _UNIT or (swizzle and box[-1] * size != swizzle):
        wanted = f"{swizzle} bytes" if swizzle else "a multiple of 16 bytes"
        return f"the box's last dimension has to be {wanted}", "choose another box"
    return None
