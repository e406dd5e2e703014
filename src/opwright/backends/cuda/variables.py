"""A ``__device__`` or ``__constant__`` variable of a CUDA module, read and set from Python: on a GPU through the
driver, in the simulator in the memory of its kernels.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from opwright.backends.gpu.device_code import DeviceCode, demangle, dtypes_of_elements, variables_in_ptx
from opwright.backends.gpu.launcher import copy_from_variable, copy_to_variable
from opwright.backends.gpu.recording import recorder_of_this_thread
from opwright.contract.dtypes import short
from opwright.errors import KernelError, LaunchError

__all__ = ["CpuMemory", "DeviceVariable", "GpuMemory"]


@dataclass(frozen=True)
class CpuMemory:
    """A variable's memory in the simulator."""

    memory: ctypes.Array[ctypes.c_char]

    @property
    def size(self) -> int:
        return len(self.memory)

    def read(self) -> bytes:
        return bytes(self.memory)

    def write(self, data: torch.Tensor) -> None:
        ctypes.memmove(self.memory, data.data_ptr(), len(self.memory))


@dataclass(frozen=True)
class GpuMemory:
    """A variable's memory on a GPU, in each compilation that has it: all are written, the first is read."""

    places: tuple[tuple[DeviceCode, str], ...]
    device: int
    size: int

    def read(self) -> bytes:
        return copy_from_variable(*self.places[0], self.device, self.size)

    def write(self, data: torch.Tensor) -> None:
        for code, symbol in self.places:
            copy_to_variable(code, symbol, self.device, data)


class DeviceVariable:
    """One variable: ``set`` writes all of it, ``get`` returns a copy. Both keep the order of torch's current stream.

    Attributes:
        name: as in the source.
        type_name: the type of its elements as the source writes it; empty if that is not known.
        dtypes: what its elements may be given as; empty if any dtype of the right number of bytes will do.
    """

    def __init__(self, name: str, module: str, type_name: str, find: Callable[[], CpuMemory | GpuMemory]) -> None:
        self.name, self.module, self.type_name = name, module, type_name
        self.dtypes = dtypes_of_elements(type_name) if type_name else ()
        self._find = find

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self._find().size

    def get(self) -> torch.Tensor:
        """Its value: a tensor of one dim on the CPU, with its elements' dtype, else of bytes."""
        data = torch.frombuffer(bytearray(self._find().read()), dtype=torch.uint8)
        return data.view(self.dtypes[0]) if self.dtypes else data

    def set(
        self, value: torch.Tensor | np.ndarray[Any, Any] | bytes | ctypes.Structure | float | Sequence[Any]
    ) -> None:
        """Write the whole variable. Numbers and lists get its elements' dtype; a tensor has to have it.

        Raises:
            LaunchError: another dtype, or another size.
        """
        memory = self._find()
        data = self._as_tensor(value)
        if data.nbytes != memory.size:
            raise LaunchError(
                f"{self._where} must have {memory.size} bytes{self._elements(memory.size)}, got {data.nbytes}",
                fix="give all of its elements",
            )
        recorder = recorder_of_this_thread()
        if recorder is not None:  # a repeated call would not set it again
            recorder.problem = recorder.problem or f"it sets the variable {self.name}"
        memory.write(data)

    @property
    def _where(self) -> str:
        declared = f"`{self.type_name} {self.name}`" if self.type_name else self.name
        return f"{self.module}: the variable {declared}"

    def _elements(self, size: int) -> str:
        if not self.dtypes:
            return ""
        count = size // self.dtypes[0].itemsize
        return f" ({count} {short(self.dtypes[0])} element{'s' if count != 1 else ''})"

    def _as_tensor(self, value: Any) -> torch.Tensor:
        if isinstance(value, ctypes.Structure | ctypes.Array | bytes | np.void):
            data = value.tobytes() if isinstance(value, np.void) else bytes(value)
            return torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if isinstance(value, torch.Tensor | np.ndarray):
            tensor = torch.as_tensor(value)
            if self.dtypes and tensor.dtype not in self.dtypes:
                raise LaunchError(
                    f"{self._where} was given {short(tensor.dtype)} elements",
                    fix=f"give {' or '.join(map(short, self.dtypes))}: value.to(torch.{short(self.dtypes[0])})",
                )
            return tensor.detach().contiguous()
        if not self.dtypes:
            raise LaunchError(
                f"{self._where} was given {type(value).__name__} {value!r}, and the type of its elements is not known",
                fix="give a tensor, a ctypes.Structure or bytes of its size",
            )
        return torch.tensor(value, dtype=self.dtypes[0])


def in_code(codes: Sequence[DeviceCode], name: str, device: int) -> GpuMemory | None:
    """The variable of that name in some compilations; None if none of them has it."""
    found = []
    for code in codes:
        assert code.ptx is not None  # NVRTC's compilations have it
        for symbol, size in variables_in_ptx(code.ptx.read_text()).items():
            if name in (symbol, demangle(symbol).split("(")[0], _last(symbol)):
                found.append((code, symbol, size))
    if not found:
        return None
    return GpuMemory(tuple((code, symbol) for code, symbol, _ in found), device, found[0][2])


def _last(symbol: str) -> str:
    return re.split(r"::", demangle(symbol))[-1]


def no_variable(module: str, name: str, known: Sequence[str]) -> KernelError:
    """The error for a name that no compiled kernel has."""
    return KernelError(
        f"{module} has no __device__ or __constant__ variable {name!r} that a kernel uses",
        fix=f"it declares {sorted(known) or 'none'}; one that only a template uses needs that instance: "
        "ow.cuda_module(..., instances=[...])",
    )
