"""Checks a GPU kernel's arguments and converts them to the 64-bit values that the driver passes to the kernel.

Pointers, which most calls have, are compared here as torch tensors; all else is as in the simulator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from opwright.backends.gpu.device_code import Parameter, ParameterKind, typed_parameter
from opwright.backends.native.native_call import ArgumentSource, KernelArgument
from opwright.backends.simulation import ArgumentPacker, KernelStruct
from opwright.errors import LaunchError
from opwright.internals.operators import words_by_launches

__all__ = ["KernelStruct", "Packer"]

# Types of 64 bits in PTX, which may be a pointer or a number.
_UNTYPED = (".u64", ".b64")
_MOST_SIGNED = (1 << 63) - 1


class Packer(ArgumentPacker):
    """Checks the arguments of one kernel and converts them to 64-bit values (a struct: to bytes)."""

    error = LaunchError

    @functools.cached_property
    def native_arguments(self) -> tuple[KernelArgument, ...] | None:
        """The parameters as the native launcher takes them: tensors for pointers, Python's int and
        float for numbers. None for a kernel that has parameters of other kinds, or none."""
        found = [self._native_argument(position, p) for position, p in enumerate(self.parameters)]
        known = tuple(argument for argument in found if argument is not None)
        return known if known and len(known) == len(found) else None

    def _pointer(self, position: int, parameter: Parameter) -> Callable[[Any, int], Any]:
        dtypes, mask = parameter.dtypes, parameter.alignment - 1

        def convert(value: Any, device: int) -> int:
            if isinstance(value, torch.Tensor):
                address = value.data_ptr()
                if value.get_device() != device or (dtypes and value.dtype not in dtypes) or address & mask:
                    raise self._wrong_tensor(position, parameter, value, device)
                return address
            return self._other_pointer(position, parameter, value, device)

        return convert

    def _words(self, words: list[int], device: int) -> tuple[Any, int]:
        if device < 0:
            kept = torch.tensor(words, dtype=torch.int64)
        else:
            with torch.cuda.device(device):
                is_captured, stream = torch.cuda.is_current_stream_capturing(), torch.cuda.current_stream().cuda_stream
            # A graph would outlive what is kept.
            on = torch.device("cuda", device)
            kept = words_by_launches(words, on) if is_captured else _table(tuple(words), device, stream)
        return kept, kept.data_ptr()

    def _typed(self, name: str, size: int, unknown_kind: ParameterKind) -> Parameter:
        return typed_parameter(name, size, unknown_kind)

    def _native_argument(self, position: int, parameter: Parameter) -> KernelArgument | None:
        if parameter.kind == "pointer":
            return KernelArgument(ArgumentSource.POINTER, position, max(parameter.alignment, 1), parameter.dtypes)
        if parameter.type_name in _UNTYPED:
            return None
        if parameter.kind == "floating" and parameter.size in (4, 8):
            source = ArgumentSource.FLOATING if parameter.size == 8 else ArgumentSource.FLOATING32
            return KernelArgument(source, position)
        if parameter.kind in ("integer", "unsigned"):
            low, high = self._range(parameter)
            return KernelArgument(ArgumentSource.INTEGER, position, low=low, high=min(high, _MOST_SIGNED))
        return None

    def _fix(self, value: Any, wanted: str) -> str:
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            return "pass value.item(), which waits for the GPU, or let the kernel take a pointer"
        if isinstance(value, np.ndarray):
            return "pass torch.from_numpy(array).cuda()"
        return super()._fix(value, wanted)


@functools.lru_cache(maxsize=256)
def _table(words: tuple[int, ...], device: int, stream: int) -> torch.Tensor:
    """Words in the GPU's memory, where a kernel reads those of a list, such as the addresses of tensors. A copy from
    memory that is not pinned would wait for all that runs in the stream. Of one stream only: what is dropped may be
    used again there."""
    pinned = torch.tensor(words, dtype=torch.int64, pin_memory=True)  # torch keeps it until the copy is made
    return pinned.to(torch.device("cuda", device), non_blocking=True)
