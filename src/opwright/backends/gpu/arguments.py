"""Checks a GPU kernel's arguments and converts them to the 64-bit values that the driver passes to the kernel.

The driver copies as many bytes as the kernel declares and checks nothing: a Python int for a float parameter, a
missing argument, or a tensor of another dtype is undefined behaviour without an error. So every argument is compared
here with the parameters of the compiled kernel.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from opwright.backends.gpu.device_code import Parameter, typed_parameter
from opwright.backends.native.native_call import ArgumentSource, KernelArgument
from opwright.contract.dtypes import short
from opwright.errors import LaunchError

__all__ = ["KernelStruct", "Packer"]

_WORD = 1 << 64
# Types of 64 bits in PTX, which may be a pointer or a number.
_UNTYPED = (".u64", ".b64")
# A parameter that torch's host code makes of a tensor.
_ACCESSOR = re.compile(r"at::GenericPackedTensorAccessor<(.+), (\d+)(?:ul)?, .+, (int|long)>")
_FLOAT_FORMATS = {2: "<e", 4: "<f", 8: "<d"}


@runtime_checkable
class KernelStruct(Protocol):
    """An argument that makes the bytes of a struct parameter for a device, such as a tensor map."""

    tensor: torch.Tensor  # whose memory the struct refers to

    def kernel_bytes(self, device: int) -> bytes: ...


class Packer:
    """Checks the arguments of one kernel and converts them to 64-bit values (a struct: to bytes)."""

    def __init__(self, kernel: str, parameters: Sequence[Parameter]) -> None:
        self.kernel = kernel
        self.parameters = tuple(parameters)
        # The addresses of the last launch's lists of tensors, by the position of the argument.
        self.pointers: dict[int, torch.Tensor] = {}
        self._convert = tuple(self._converter(i, p) for i, p in enumerate(parameters))

    @functools.cached_property
    def native_arguments(self) -> tuple[KernelArgument, ...] | None:
        """The parameters as the native launcher takes them: tensors for pointers, Python's int and
        float for numbers. None for a kernel that has parameters of other kinds, or none."""
        found = [_native_argument(position, p) for position, p in enumerate(self.parameters)]
        known = tuple(argument for argument in found if argument is not None)
        return known if known and len(known) == len(found) else None

    def pack(self, arguments: Sequence[Any], device: int) -> list[Any]:
        """Values for the driver, in order.

        Args:
            device: the index of the GPU where the kernel will run; -1 for the simulator, on CPU tensors.

        Raises:
            LaunchError: a wrong number of arguments, or one of the wrong kind, dtype, device or alignment.
        """
        if len(arguments) != len(self._convert):
            raise self._wrong_count(arguments)
        return [convert(a, device) for convert, a in zip(self._convert, arguments, strict=True)]

    def _converter(self, position: int, parameter: Parameter) -> Callable[[Any, int], Any]:
        if parameter.kind == "pointer" or parameter.type_name in _UNTYPED:
            return self._pointer(position, parameter)
        if parameter.kind in ("integer", "unsigned"):
            return self._integer(position, parameter)
        if parameter.kind == "floating":
            return self._floating(position, parameter)
        if parameter.kind == "bool":
            return self._bool(position, parameter)
        return self._struct(position, parameter)

    def _pointer(self, position: int, parameter: Parameter) -> Callable[[Any, int], Any]:
        # PTX without C++ types does not distinguish a pointer from a 64-bit integer: both are accepted.
        dtypes, mask, untyped = parameter.dtypes, parameter.alignment - 1, parameter.kind != "pointer"
        to_pointers = re.search(r"\*\s*(?:const\s*)?(?:__restrict__\s*)?\*", parameter.type_name) is not None

        def convert(value: Any, device: int) -> int:
            if isinstance(value, torch.Tensor):
                address = value.data_ptr()
                if value.get_device() != device or (dtypes and value.dtype not in dtypes) or address & mask:
                    raise self._wrong_tensor(position, parameter, value, device)
                return address
            if value is None or (type(value) is int and value == 0):  # as in C++
                return 0
            if to_pointers and isinstance(value, list | tuple) and value:
                return self._addresses(position, parameter, value, device)
            if untyped and isinstance(value, int | np.integer):
                return self._in_range(position, parameter, int(value), 0, _WORD - 1)
            raise self._wrong_kind(position, parameter, value, "a tensor")

        return convert

    def _addresses(self, position: int, parameter: Parameter, tensors: Sequence[Any], device: int) -> int:
        """The address of a list of tensors' addresses, for a pointer to pointers. It is kept until the next launch."""
        element = typed_parameter(parameter.type_name.rstrip()[:-1].removesuffix("const").strip(), 8, "pointer")
        convert = self._pointer(position, element)
        words = [convert(tensor, device) for tensor in tensors]
        place = "cpu" if device < 0 else torch.device("cuda", device)
        self.pointers[position] = kept = torch.tensor(words, dtype=torch.int64).to(place)
        return kept.data_ptr()

    def _integer(self, position: int, parameter: Parameter) -> Callable[[Any, int], Any]:
        low, high = _range(parameter)

        def convert(value: Any, device: int) -> int:
            if isinstance(value, int | np.integer):
                return self._in_range(position, parameter, int(value), low, high)
            raise self._wrong_kind(position, parameter, value, "an int")

        return convert

    def _floating(self, position: int, parameter: Parameter) -> Callable[[Any, int], Any]:
        size, is_bfloat16 = parameter.size, parameter.dtypes == (torch.bfloat16,)

        def convert(value: Any, device: int) -> int:
            if not isinstance(value, float | int | np.floating | np.integer):
                raise self._wrong_kind(position, parameter, value, "a float")
            if is_bfloat16:
                return int(torch.tensor(float(value), dtype=torch.bfloat16).view(torch.uint16))
            try:
                packed = struct.pack(_FLOAT_FORMATS[size], value)
            except OverflowError:  # a double too large for the smaller type becomes an infinity, as in C++
                packed = struct.pack(_FLOAT_FORMATS[size], float("inf") if value > 0 else float("-inf"))
            return int.from_bytes(packed, "little", signed=True)

        return convert

    def _bool(self, position: int, parameter: Parameter) -> Callable[[Any, int], Any]:
        def convert(value: Any, device: int) -> int:
            if not isinstance(value, bool | np.bool_):
                raise self._wrong_kind(position, parameter, value, "a bool")
            return int(value)

        return convert

    def _struct(self, position: int, parameter: Parameter) -> Callable[[Any, int], Any]:
        """By value: a ``ctypes.Structure``, a NumPy record or bytes, of exactly the struct's size."""

        accessor = _ACCESSOR.fullmatch(parameter.type_name)

        def convert(value: Any, device: int) -> Any:
            if isinstance(value, KernelStruct):
                value = value.kernel_bytes(device)
            if isinstance(value, ctypes.Structure | ctypes.Union | ctypes.Array | np.void | bytes):
                data = bytes(memoryview(value).cast("B")) if not isinstance(value, np.void) else value.tobytes()
                if len(data) != parameter.size:
                    raise LaunchError(
                        f"{self._where(position, parameter)} has {parameter.size} bytes, but {len(data)} were passed",
                        fix="lay the struct out as C++ does, padding included",
                    )
                return int.from_bytes(data, "little", signed=True) if len(data) <= 8 else data
            if accessor is not None and isinstance(value, torch.Tensor):
                return self._accessor(position, parameter, accessor, value, device)
            raise self._wrong_kind(position, parameter, value, f"a ctypes.Structure of {parameter.size} bytes")

        return convert

    def _accessor(
        self, position: int, parameter: Parameter, found: re.Match[str], tensor: torch.Tensor, device: int
    ) -> bytes:
        """torch's packed accessor of a tensor: its address, sizes and strides."""
        element = typed_parameter(f"{found[1]}*", 8, "pointer")
        address = self._pointer(position, dataclasses.replace(element, type_name=parameter.type_name))(tensor, device)
        dims, code = int(found[2]), "i" if found[3] == "int" else "q"
        if tensor.dim() != dims:
            raise LaunchError(
                f"{self._where(position, parameter)} takes a tensor of {dims} dims, but one of {tensor.dim()} came",
                fix="pass x.view(...) or x.unsqueeze(...)",
            )
        return struct.pack(f"<Q{2 * dims}{code}", address % _WORD, *tensor.shape, *tensor.stride()).ljust(
            parameter.size, b"\0"
        )

    # -- errors -----------------------------------------------------------------------------------------

    def _where(self, position: int, parameter: Parameter) -> str:
        return f"{self.kernel}: argument {position + 1}, `{parameter.type_name}`,"

    def _in_range(self, position: int, parameter: Parameter, value: int, low: int, high: int) -> int:
        if not low <= value <= high:
            raise LaunchError(
                f"{self._where(position, parameter)} accepts {low} to {high}, but {value} was passed",
                fix="declare it wider in the kernel (`long long`, `size_t`)",
            )
        return _signed(value)

    def _wrong_kind(self, position: int, parameter: Parameter, value: Any, wanted: str) -> LaunchError:
        passed = (
            f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"{type(value).__name__} {value!r}"
        )
        return LaunchError(
            f"{self._where(position, parameter)} takes {wanted}, but {passed} was passed", fix=_fix(value, wanted)
        )

    def _wrong_tensor(self, position: int, parameter: Parameter, tensor: torch.Tensor, device: int) -> LaunchError:
        where = self._where(position, parameter)
        if tensor.get_device() != device:
            return LaunchError(
                f"{where} got a tensor on {tensor.device}, but the kernel runs on {_device_name(device)}",
                fix="move it there: the tensors of a launch have to be on one device",
            )
        if parameter.dtypes and tensor.dtype not in parameter.dtypes:
            return LaunchError(
                f"{where} got {short(tensor.dtype)} elements",
                fix=f"pass {' or '.join(map(short, parameter.dtypes))}, or a kernel for {short(tensor.dtype)}",
            )
        return LaunchError(
            f"{where} needs an address that is a multiple of {parameter.alignment} bytes, "
            f"and this view starts {tensor.data_ptr() % parameter.alignment} bytes past one",
            fix=f"keep such views out with `when` (x.data_ptr() % {parameter.alignment} == 0), or pass x.clone()",
        )

    def _wrong_count(self, arguments: Sequence[Any]) -> LaunchError:
        types = ", ".join(p.type_name for p in self.parameters)
        return LaunchError(
            f"{self.kernel} takes {len(self.parameters)} arguments, but {len(arguments)} were passed",
            fix=f"it is declared {self.kernel}({types})",
        )


def _native_argument(position: int, parameter: Parameter) -> KernelArgument | None:
    if parameter.kind == "pointer":
        return KernelArgument(ArgumentSource.POINTER, position, max(parameter.alignment, 1), parameter.dtypes)
    if parameter.type_name in _UNTYPED:
        return None
    if parameter.kind == "floating" and parameter.size in (4, 8):
        source = ArgumentSource.FLOATING if parameter.size == 8 else ArgumentSource.FLOATING32
        return KernelArgument(source, position)
    if parameter.kind in ("integer", "unsigned"):
        low, high = _range(parameter)
        return KernelArgument(ArgumentSource.INTEGER, position, low=low, high=min(high, (_WORD >> 1) - 1))
    return None


def _range(parameter: Parameter) -> tuple[int, int]:
    bits = 8 * parameter.size
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if parameter.kind == "integer" else (0, (1 << bits) - 1)


def _signed(word: int) -> int:
    return word - _WORD if word >= _WORD >> 1 else word


def _device_name(device: int) -> str:
    return f"cuda:{device}" if device >= 0 else "the CPU"


def _fix(value: Any, wanted: str) -> str:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return "pass value.item(), which waits for the GPU, or let the kernel take a pointer"
    if isinstance(value, torch.Tensor):
        return "the arguments may be in another order than the kernel's parameters"
    if isinstance(value, np.ndarray):
        return "pass torch.from_numpy(array).cuda()"
    if isinstance(value, float):
        return "write int(value) if that is meant"
    return f"pass {wanted}"
