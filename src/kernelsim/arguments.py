"""The parameters of a kernel by their C++ types, and the arguments of a launch as what the kernel gets.

A launch copies as many bytes as the kernel declares and checks nothing: a Python int for a float parameter, a missing
argument, or a tensor of another dtype is undefined behaviour without an error. So every argument is compared here with
the parameters of the compiled kernel. Dtypes are names, such as ``float32``.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from kernelsim.arrays import CPU, array_of
from kernelsim.errors import LaunchError

__all__ = ["KernelStruct", "Packer", "Parameter", "ParameterKind", "dtypes_of_elements", "typed_parameter"]

ParameterKind = Literal["pointer", "integer", "unsigned", "floating", "bool", "struct"]
_WORD = 1 << 64
# Types of 64 bits in PTX, which may be a pointer or a number.
_UNTYPED = (".u64", ".b64")
# A parameter that torch's host code makes of a tensor.
_ACCESSOR = re.compile(
    r"at::GenericPackedTensorAccessor<(.+), (\d+)(?:ul)?, .+, (int|long)(?: int)?>"
)  # long int: g++'s
_FLOAT_FORMATS = {2: "<e", 4: "<f", 8: "<d"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        kind: what a launch may pass.
        size: bytes.
        type_name: as it is written in C++ (for PTX of another language, PTX's own type).
        dtypes: the dtypes of tensors that may be passed for a pointer; empty if unknown. A ``float4*``
            takes float32.
        alignment: of a pointer, in bytes.
        writes: False for a pointer to const.
    """

    kind: ParameterKind
    size: int
    type_name: str
    dtypes: tuple[Any, ...] = ()
    alignment: int = 1
    writes: bool = True


# --- C++ types ---

# C++ type → the kind of its argument, the dtypes with such elements, and their size.
_TYPES: dict[str, tuple[ParameterKind, tuple[str, ...], int]] = {
    "float": ("floating", ("float32",), 4),
    "double": ("floating", ("float64",), 8),
    "__half": ("floating", ("float16",), 2),
    "__nv_bfloat16": ("floating", ("bfloat16",), 2),
    "c10::Half": ("floating", ("float16",), 2),
    "c10::BFloat16": ("floating", ("bfloat16",), 2),
    "bool": ("bool", ("bool",), 1),
    "char": ("integer", (), 1),  # bytes of any dtype
    "signed char": ("integer", ("int8",), 1),
    "short": ("integer", ("int16", "uint16"), 2),
    "int": ("integer", ("int32", "uint32"), 4),
    "long": ("integer", ("int64", "uint64"), 8),
    "long long": ("integer", ("int64", "uint64"), 8),
    "unsigned char": ("unsigned", ("uint8", "bool"), 1),
    "unsigned short": ("unsigned", ("uint16", "int16"), 2),
    "unsigned int": ("unsigned", ("uint32", "int32"), 4),
    "unsigned long": ("unsigned", ("uint64", "int64"), 8),
    "unsigned long long": ("unsigned", ("uint64", "int64"), 8),
    "__half2": ("struct", ("float16",), 2),
    "__nv_bfloat162": ("struct", ("bfloat16",), 2),
    "__nv_fp8_e4m3": ("struct", ("float8_e4m3fn",), 1),
    "__nv_fp8_e5m2": ("struct", ("float8_e5m2",), 1),
}
_UNKNOWN: tuple[ParameterKind, tuple[str, ...], int] = ("struct", (), 1)
_PAIRS = {"float32": "complex64", "float64": "complex128"}
_VECTOR = re.compile(r"(u?)(char|short|int|longlong|long|float|double)([1234])(?:_16a|_32a)?$")


def typed_parameter(name: str, size: int, unknown_kind: ParameterKind) -> Parameter:
    """A parameter from its C++ type. ``unknown_kind`` is for a type that is not in the table, such as an enum."""
    if name.endswith("*"):
        pointee = name[:-1].strip()
        dtypes, alignment = _element(re.sub(r"\b(const|volatile)\b", "", pointee).strip())
        return Parameter("pointer", size, name, dtypes, alignment, writes="const" not in pointee)
    kind, dtypes, _ = _TYPES.get(_as_demangled(name), (unknown_kind, (), 1))
    return Parameter(kind, size, name, dtypes)


def _as_demangled(name: str) -> str:
    """g++'s ``long unsigned int`` as a demangler writes it: ``unsigned long``."""
    parts = name.split()
    if len(parts) > 1 and parts[-1] == "int" and parts[0] != "unsigned":
        parts = parts[:-1]
    if "unsigned" in parts:
        parts = ["unsigned", *(p for p in parts if p != "unsigned")]
    return " ".join(parts)


def dtypes_of_elements(type_name: str) -> tuple[str, ...]:
    """The dtypes of a tensor with elements of a C++ type, such as ``float`` or ``float4``; empty if any would do."""
    kind, dtypes, _ = _TYPES.get(_as_demangled(type_name), _UNKNOWN)
    return dtypes if kind != "struct" or dtypes else _element(type_name)[0]


def _element(pointee: str) -> tuple[tuple[str, ...], int]:
    """The dtypes of a tensor for a pointer to such a type, and the alignment of its address in bytes."""
    if vector := _VECTOR.match(pointee):
        _, word, lanes = vector.groups()
        _, dtypes, size = _TYPES["long long" if word == "longlong" else word]
        # Three lanes are aligned like one, and nothing more than 16 bytes (CUDA C++ Programming Guide, vector types).
        alignment = size if lanes == "3" else min(16, size * int(lanes))
        if word not in ("float", "double"):
            return (), alignment  # copies of any type: uint4 and int4 are the common ones for 128 bits
        return (*dtypes, *(_PAIRS[dtype] for dtype in dtypes if lanes in "24")), alignment
    _, dtypes, size = _TYPES.get(_as_demangled(pointee), _UNKNOWN)
    return dtypes, 4 if pointee in ("__half2", "__nv_bfloat162") else size


# --- arguments ---


@runtime_checkable
class KernelStruct(Protocol):
    """An argument that makes the bytes of a struct parameter for a device, such as a tensor map."""

    tensor: Any  # whose memory the struct refers to

    def kernel_bytes(self, device: int) -> bytes: ...


class Packer:
    """Checks the arguments of one kernel and converts them to 64-bit values (a struct: to bytes).

    Attributes:
        error: the class of its errors.
    """

    error: ClassVar[Callable[..., Exception]] = LaunchError

    def __init__(self, kernel: str, parameters: Sequence[Parameter]) -> None:
        self.kernel = kernel
        self.parameters = tuple(parameters)
        # The addresses of the last launch's lists of tensors, by the position of the argument.
        self.pointers: dict[int, Any] = {}
        self._convert = tuple(self._converter(i, p) for i, p in enumerate(parameters))

    def pack(self, arguments: Sequence[Any], device: int) -> list[Any]:
        """Values for the kernel, in order.

        Args:
            device: the index of the GPU where the kernel will run; -1 for the CPU.

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
        dtypes = [_name(dtype) for dtype in parameter.dtypes]

        def convert(value: Any, device: int) -> int:
            array = array_of(value)
            if array is None:
                return self._other_pointer(position, parameter, value, device)
            wrong = dtypes and array.dtype not in dtypes
            if array.device != _device_name(device) or wrong or array.pointer % parameter.alignment:
                raise self._wrong_tensor(position, parameter, value, device)
            return array.pointer

        return convert

    def _other_pointer(self, position: int, parameter: Parameter, value: Any, device: int) -> int:
        """What is no tensor, for a pointer."""
        if value is None or (type(value) is int and value == 0):  # as in C++
            return 0
        if isinstance(value, list | tuple) and value and (convert := self._of_list(position, parameter)):
            self.pointers[position], address = self._words([convert(element, device) for element in value], device)
            return address
        # PTX without C++ types does not distinguish a pointer from a 64-bit integer: both are accepted.
        if parameter.kind != "pointer" and isinstance(value, int | np.integer):
            return self._in_range(position, parameter, int(value), 0, _WORD - 1)
        raise self._wrong_kind(position, parameter, value, "a tensor")

    def _of_list(self, position: int, parameter: Parameter) -> Callable[[Any, int], Any] | None:
        """Converts what a list for a pointer has: tensors for one to pointers, numbers for one to const integers of 64
        bits. None for other pointers."""
        pointee = parameter.type_name.rstrip().removesuffix("__restrict__").rstrip()[:-1].strip()
        if _TO_POINTERS.search(parameter.type_name):
            return self._pointer(position, self._typed(pointee.removesuffix("const").strip(), 8, "pointer"))
        if not parameter.writes and "int64" in [_name(dtype) for dtype in parameter.dtypes]:
            return self._integer(position, self._typed(pointee.removeprefix("const").strip(), 8, "integer"))
        return None

    def _words(self, words: list[int], device: int) -> tuple[Any, int]:
        """A tensor of such numbers where the kernel reads it, and its address."""
        kept = np.array(words, dtype=np.int64)
        return kept, kept.ctypes.data

    def _integer(self, position: int, parameter: Parameter) -> Callable[[Any, int], Any]:
        low, high = self._range(parameter)

        def convert(value: Any, device: int) -> int:
            if isinstance(value, int | np.integer):
                return self._in_range(position, parameter, int(value), low, high)
            raise self._wrong_kind(position, parameter, value, "an int")

        return convert

    def _floating(self, position: int, parameter: Parameter) -> Callable[[Any, int], Any]:
        is_bfloat16 = [_name(dtype) for dtype in parameter.dtypes] == ["bfloat16"]
        size = 4 if is_bfloat16 else parameter.size

        def convert(value: Any, device: int) -> int:
            if not isinstance(value, float | int | np.floating | np.integer):
                raise self._wrong_kind(position, parameter, value, "a float")
            try:
                packed = struct.pack(_FLOAT_FORMATS[size], value)
            except OverflowError:  # a double too large for the smaller type becomes an infinity, as in C++
                packed = struct.pack(_FLOAT_FORMATS[size], float("inf") if value > 0 else float("-inf"))
            bits = int.from_bytes(packed, "little", signed=True)
            return _as_bfloat16(bits % 2**32) if is_bfloat16 else bits

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
                    raise self.error(
                        f"{self._where(position, parameter)} must have {parameter.size} bytes, got {len(data)}",
                        fix="lay the struct out as C++ does, padding included",
                    )
                return int.from_bytes(data, "little", signed=True) if len(data) <= 8 else data
            if accessor is not None and array_of(value) is not None:
                return self._accessor(position, parameter, accessor, value, device)
            raise self._wrong_kind(position, parameter, value, f"a ctypes.Structure of {parameter.size} bytes")

        return convert

    def _accessor(self, position: int, parameter: Parameter, found: re.Match[str], tensor: Any, device: int) -> bytes:
        """torch's packed accessor of a tensor: its address, sizes and strides."""
        element = self._typed(f"{found[1]}*", 8, "pointer")
        address = self._pointer(position, dataclasses.replace(element, type_name=parameter.type_name))(tensor, device)
        array, dims, code = array_of(tensor), int(found[2]), "i" if found[3] == "int" else "q"
        assert array is not None  # the caller has tested it
        if len(array.shape) != dims:
            raise self.error(
                f"{self._where(position, parameter)} takes a tensor of {dims} dims, but one of {len(array.shape)} came",
                fix="pass x.view(...) or x.unsqueeze(...)",
            )
        extents = (*array.shape, *array.strides)
        if code == "i" and any(not -(1 << 31) <= extent < 1 << 31 for extent in extents):
            raise self.error(
                f"{self._where(position, parameter)} has sizes and strides of 32 bits, but a tensor of "
                f"{array.shape} with strides {array.strides} came",
                fix="declare it as PackedTensorAccessor64",
            )
        return struct.pack(f"<Q{2 * dims}{code}", address % _WORD, *extents).ljust(parameter.size, b"\0")

    def _typed(self, name: str, size: int, unknown_kind: ParameterKind) -> Parameter:
        return typed_parameter(name, size, unknown_kind)

    @staticmethod
    def _range(parameter: Parameter) -> tuple[int, int]:
        bits = 8 * parameter.size
        return (-(1 << bits - 1), (1 << bits - 1) - 1) if parameter.kind == "integer" else (0, (1 << bits) - 1)

    # -- errors -----------------------------------------------------------------------------------------

    def _where(self, position: int, parameter: Parameter) -> str:
        return f"{self.kernel}: argument {position + 1}, `{parameter.type_name}`,"

    def _in_range(self, position: int, parameter: Parameter, value: int, low: int, high: int) -> int:
        if not low <= value <= high:
            raise self.error(
                f"{self._where(position, parameter)} must be between {low} and {high}, got {value}",
                fix="declare it wider in the kernel (`long long`, `size_t`)",
            )
        return value - _WORD if value >= _WORD >> 1 else value  # signed

    def _wrong_kind(self, position: int, parameter: Parameter, value: Any, wanted: str) -> Exception:
        array = array_of(value)
        passed = f"a tensor {array.shape}" if array is not None else f"{type(value).__name__} {value!r}"
        return self.error(
            f"{self._where(position, parameter)} must be {wanted}, got {passed}", fix=self._fix(value, wanted)
        )

    def _wrong_tensor(self, position: int, parameter: Parameter, tensor: Any, device: int) -> Exception:
        where, array = self._where(position, parameter), array_of(tensor)
        assert array is not None  # the caller has tested it
        if array.device != _device_name(device):
            return self.error(
                f"{where} must be on {_device_name(device) if device >= 0 else 'the CPU'}, as the kernel is, "
                f"got a tensor on {array.device}",
                fix="move it there: the tensors of a launch have to be on one device",
            )
        dtypes = [_name(dtype) for dtype in parameter.dtypes]
        if dtypes and array.dtype not in dtypes:
            return self.error(
                f"{where} must have {' or '.join(dtypes)} elements, got {array.dtype}",
                fix=f"pass {' or '.join(dtypes)}, or a kernel for {array.dtype}",
            )
        return self.error(
            f"{where} must have an address that is a multiple of {parameter.alignment} bytes, got a view that starts "
            f"{array.pointer % parameter.alignment} bytes past one",
            fix=f"keep such views out with `when` (x.data_ptr() % {parameter.alignment} == 0), or pass x.clone()",
        )

    def _wrong_count(self, arguments: Sequence[Any]) -> Exception:
        types = ", ".join(p.type_name for p in self.parameters)
        return self.error(
            f"{self.kernel} must be given {len(self.parameters)} arguments, got {len(arguments)}",
            fix=f"it is declared {self.kernel}({types})",
        )

    def _fix(self, value: Any, wanted: str) -> str:
        array = array_of(value)
        if array is not None and array.size == 1:
            return "pass value.item(), or let the kernel take a pointer"
        if array is not None:
            return "the arguments may be in another order than the kernel's parameters"
        if isinstance(value, float):
            return "write int(value) if that is meant"
        return f"pass {wanted}"


_TO_POINTERS = re.compile(r"\*\s*(?:const\s*)?(?:__restrict__\s*)?\*")


def _name(dtype: Any) -> str:
    """``torch.float32`` → ``float32``; a name is its own."""
    return str(dtype).removeprefix("torch.")


def _device_name(device: int) -> str:
    return f"cuda:{device}" if device >= 0 else CPU


def _as_bfloat16(bits: int) -> int:
    """The upper half of a float's bits, rounded to the nearest, ties to even."""
    if bits & 0x7FFFFFFF > 0x7F800000:  # NaN
        return 0x7FC0
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) & 0xFFFF
