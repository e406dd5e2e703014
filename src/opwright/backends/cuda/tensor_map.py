"""Tensor maps (``CUtensorMap``) for a GPU and for the simulator."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from opwright.backends.simulation import SimulatedTensorMap, our_errors
from opwright.errors import LaunchError

__all__ = ["TensorMap", "tensor_map"]

_BYTES = 128
# CUtensorMapDataType and CUtensorMapSwizzle of the driver, without their common beginning.
_TYPES = {
    torch.uint8: "UINT8", torch.int8: "UINT8", torch.float8_e4m3fn: "UINT8", torch.float8_e5m2: "UINT8",
    torch.int32: "INT32", torch.int64: "INT64", torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16",
    torch.float32: "FLOAT32", torch.float64: "FLOAT64",
}  # fmt: skip
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


class TensorMap(SimulatedTensorMap):
    """A tensor and the box of it that one bulk copy moves: the argument for a ``CUtensorMap`` parameter."""

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
        return super().kernel_bytes(device) if device < 0 else self._by_driver()

    def _by_driver(self) -> bytes:
        from cuda.bindings import driver

        rank = self.tensor.dim()
        error, made = driver.cuTensorMapEncodeTiled(
            getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[self.tensor.dtype]}"),
            rank,
            self.tensor.data_ptr(),
            [driver.cuuint64_t(size) for size in self.sizes],
            [driver.cuuint64_t(stride) for stride in self.strides[1:]],
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
    with our_errors():
        return TensorMap(tensor, tuple(box), swizzle)
