"""The values of simulated host functions: numbers of C++, pointers into tensors, blocks and iterators."""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from opwright.errors import NotSimulatedError

__all__ = [
    "CPP_TYPES", "Dim3", "KernelName", "Pointer", "VectorIterator", "are_other_types", "binary", "convert",
    "dtype_of_type", "element", "size_of_type", "type_of", "with_types",
]  # fmt: skip


class Dim3(tuple[int, ...]):
    """CUDA's ``dim3``: three numbers, those that are left out 1."""

    def __new__(cls, x: int = 1, y: int = 1, z: int = 1) -> Dim3:
        return super().__new__(cls, (x, y, z))

    def field(self, name: str) -> int:
        """``x``, ``y`` or ``z``.

        Raises:
            ValueError: the name is another.
        """
        return self[("x", "y", "z").index(name)]

    def replaced(self, name: str, value: int) -> Dim3:
        """The same with another ``x``, ``y`` or ``z``."""
        return Dim3(*(value if axis == name else own for axis, own in zip("xyz", self, strict=True)))


@dataclass(frozen=True)
class Pointer:
    """A pointer into the memory of a tensor.

    Args:
        tensor: the tensor whose first element ``data_ptr`` points to.
        offset: the distance from that element, in bytes.
        step: the size of what it points to, in bytes; None if that is not known, as of ``void*``.
        dtype: the dtype of what it points to; None if tensors have no such elements, such as ``float4``.
        type_name: the type of what it points to.
        is_allocated: whether ``cudaMalloc`` has made the memory.
    """

    tensor: torch.Tensor
    offset: int = 0
    step: int | None = None
    dtype: torch.dtype | None = None
    type_name: str = "void"
    is_allocated: bool = False

    def __bool__(self) -> bool:
        return self.address != 0

    @property
    def address(self) -> int:
        return self.tensor.data_ptr() + self.offset

    def to(self, type_name: str) -> Pointer:
        """What a cast to a pointer to a type gives."""
        size, dtype = size_of_type(type_name), dtype_of_type(type_name)
        return dataclasses.replace(self, step=size, dtype=dtype, type_name=type_name)

    def refuse_freed(self) -> None:
        """Raise ValueError if ``cudaFree`` was given the memory."""
        if self.is_allocated and self.tensor.numel() and not self.tensor.untyped_storage().nbytes():
            raise ValueError("the memory was freed before")

    def moved(self, count: int) -> Pointer:
        """The pointer to what lies ``count`` steps further.

        Raises:
            NotSimulatedError: the size of a step is not known.
        """
        if self.step is None:
            raise NotSimulatedError("the size of what a pointer points to is not known", fix="cast it to another type")
        return dataclasses.replace(self, offset=self.offset + count * self.step)

    def memory(self) -> torch.Tensor:
        """The tensor, or a view of its memory from the place that this points to.

        Raises:
            NotSimulatedError: the pointer lies outside of the tensor's memory.
        """
        self.refuse_freed()
        dtype = self.dtype or self.tensor.dtype
        if not self.offset and dtype == self.tensor.dtype:
            return self.tensor
        rest = self.bytes()
        if rest.storage_offset() % dtype.itemsize:
            raise NotSimulatedError(
                f"a pointer must lie at a multiple of {dtype.itemsize} bytes, got byte {self.offset} of its tensor",
                fix="use a GPU",
            )
        return rest[: len(rest) // dtype.itemsize * dtype.itemsize].view(dtype)

    def bytes(self) -> torch.Tensor:
        """The tensor's memory from the place that this points to, also between its elements.

        Raises:
            NotSimulatedError: the pointer lies outside of the tensor's memory.
        """
        self.refuse_freed()
        sizes = zip(self.tensor.shape, self.tensor.stride(), strict=True)
        count = 1 + sum((size - 1) * stride for size, stride in sizes) if self.tensor.numel() else 0
        whole = self.tensor.as_strided((count,), (1,)).view(torch.uint8)
        if not 0 <= self.offset <= len(whole):
            raise NotSimulatedError(
                f"a pointer must lie within its tensor, got byte {self.offset} of {len(whole)}", fix="use a GPU"
            )
        return whole[self.offset :]


class KernelName(str):
    """A kernel as a value, with its template arguments."""

    __slots__ = ()


@dataclass(frozen=True)
class VectorIterator:
    """An iterator of a ``std::vector``."""

    values: list[Any]
    index: int = 0

    def moved(self, count: int) -> VectorIterator:
        """The iterator ``count`` elements further."""
        return VectorIterator(self.values, self.index + count)


CPP_TYPES = {
    torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16",
    torch.uint8: "uint8_t", torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int", torch.int64: "int64_t",
    torch.bool: "bool",
}  # fmt: skip
_OTHER_NAMES = {
    "Half": torch.float16, "half": torch.float16, "__half": torch.float16, "BFloat16": torch.bfloat16,
    "__nv_bfloat16": torch.bfloat16, "nv_bfloat16": torch.bfloat16, "int32_t": torch.int32, "long": torch.int64,
    "long long": torch.int64, "unsigned char": torch.uint8, "short": torch.int16, "signed char": torch.int8,
    "Float8_e4m3fn": torch.float8_e4m3fn, "__nv_fp8_e4m3": torch.float8_e4m3fn,
    "Float8_e5m2": torch.float8_e5m2, "__nv_fp8_e5m2": torch.float8_e5m2,
}  # fmt: skip
_DTYPES = {name.rpartition("::")[2]: dtype for dtype, name in CPP_TYPES.items()} | _OTHER_NAMES
_BITS = {
    "int": 32, "int32_t": 32, "long": 64, "long long": 64, "int64_t": 64, "short": 16, "int16_t": 16, "ssize_t": 64,
    "ptrdiff_t": 64, "intptr_t": 64, "int8_t": 8,
}  # fmt: skip
_BYTES_OF_OTHERS = {
    f"{name}{n}": size * n
    for name, size in (("char", 1), ("uchar", 1), ("short", 2), ("ushort", 2), ("int", 4), ("uint", 4), ("float", 4),
                       ("longlong", 8), ("ulonglong", 8), ("double", 8))
    for n in (1, 2, 4)
} | {"char": 1, "half2": 4, "__half2": 4, "__nv_bfloat162": 4, "nv_bfloat162": 4}  # fmt: skip
_UNSIGNED_BITS = {
    "unsigned": 32, "unsigned int": 32, "uint32_t": 32, "uint": 32, "size_t": 64, "uint64_t": 64, "unsigned long": 64,
    "unsigned long long": 64, "unsigned short": 16, "uint16_t": 16, "uint8_t": 8, "uintptr_t": 64,
}  # fmt: skip


def dtype_of_type(name: str) -> torch.dtype | None:
    """The dtype of tensors of a C++ type."""
    return _DTYPES.get(name if name in _DTYPES else name.rpartition("::")[2])


# Names of one type. C++ converts no pointer to one of these into a pointer to another, also where both have one size.
_SAME_TYPES = (
    {"int64_t", "long", "long int"}, {"long long", "long long int"}, {"int", "int32_t"}, {"float"}, {"double"},
    {"uint64_t", "unsigned long", "size_t"}, {"unsigned long long", "unsigned long long int"}, {"char"},
    {"int8_t", "signed char"}, {"uint8_t", "unsigned char"}, {"bool"}, {"int16_t", "short"},
    {"c10::Half", "at::Half"}, {"__half", "half"}, {"c10::BFloat16", "at::BFloat16"},
    {"__nv_bfloat16", "nv_bfloat16"}, {"void"},
)  # fmt: skip


def are_other_types(a: str, b: str) -> bool:
    """Whether both types are known, and not the same."""
    found = [next((i for i, names in enumerate(_SAME_TYPES) if name in names), None) for name in (a, b)]
    return None not in found and found[0] != found[1]


def size_of_type(name: str) -> int | None:
    """``sizeof``, in bytes; None if it is not known."""
    dtype = dtype_of_type(name)
    if dtype is not None:
        return dtype.itemsize
    bits = _UNSIGNED_BITS.get(name) or _BITS.get(name)
    return bits // 8 if bits else _BYTES_OF_OTHERS.get(name)


def convert(value: Any, type_name: str) -> Any:
    """A value as a variable of a type has it.

    Raises:
        ValueError: it does not fit, and C++ would change it without a word.
    """
    bits, unsigned = _BITS.get(type_name), _UNSIGNED_BITS.get(type_name)
    if type_name == "bool":
        return bool(value)
    if type_name in ("float", "double"):
        number = float(value)
        return struct.unpack("f", struct.pack("f", number))[0] if type_name == "float" else number
    if bits is None and unsigned is None:
        dtype = dtype_of_type(type_name)
        is_half = dtype is not None and dtype.is_floating_point
        return torch.tensor(float(value), dtype=dtype).item() if is_half else value
    number = int(value)
    low, high = (0, 1 << unsigned) if unsigned is not None else (-(1 << (bits or 1) - 1), 1 << (bits or 1) - 1)
    if not low <= number < high:
        raise ValueError(f"{number} does not fit into {type_name}")
    return number


def element(values: Any, index: int) -> Any:
    """``values[index]`` of a vector or a tensor.

    Raises:
        IndexError: a vector has no such element; C++ would read past its memory.
    """
    if isinstance(values, list | tuple) and index < 0:
        raise IndexError(f"the index must be at least 0, got {index}")
    return values[index]


def type_of(value: Any) -> str:
    """The type of an ``auto`` variable that begins with a number; "auto" for other values."""
    if isinstance(value, bool):
        return "bool"
    return {int: "long long", float: "double"}.get(type(value), "auto")


def binary(sign: str, a: Any, b: Any) -> Any:
    """An operation on numbers, pointers and tensors. Quotients of integers are cut off.

    Raises:
        NotSimulatedError: pointers are combined in another way than by adding numbers.
    """
    if isinstance(a, Pointer | VectorIterator) or isinstance(b, Pointer | VectorIterator):
        return _of_pointers(sign, a, b)
    if sign in ("/", "%") and isinstance(a, int) and isinstance(b, int):
        if b == 0:
            raise ValueError("integer division by zero")
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if sign == "/" else a - quotient * b
    return _OPERATIONS[sign](a, b)


def _of_pointers(sign: str, a: Any, b: Any) -> Any:
    if sign in ("==", "!=") and (a is None or b is None):
        return bool(a or b) == (sign == "!=")
    if sign == "+" and isinstance(a, int):
        return b.moved(a)
    if sign in ("+", "-") and isinstance(b, int):
        return a.moved(b if sign == "+" else -b)
    raise NotSimulatedError(f"a pointer or an iterator is not simulated with {sign}", fix="add numbers to it only")


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "&": lambda a, b: a & b, "|": lambda a, b: a | b,
    "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b, "^": lambda a, b: a ^ b,
}  # fmt: skip


def with_types(text: str, scope: Mapping[str, Any]) -> str:
    """A kernel's name with the types and numbers that its template arguments stand for."""

    def written(found: re.Match[str]) -> str:
        name = found[0]
        if f"type {name}" in scope:
            return str(scope[f"type {name}"])
        value = scope.get(name)
        return str(value).lower() if isinstance(value, int) else name

    name, opening, arguments = text.partition("<")
    return name + opening + re.sub(r"\b[A-Za-z_]\w*\b", written, arguments) if opening else name
