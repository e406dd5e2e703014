"""What simulated host functions compute with: numbers of C++, and functions and methods of torch's tensors.

Whatever is not listed here is not simulated.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from opwright.errors import NotSimulatedError

__all__ = [
    "CONSTANTS", "CPP_TYPES", "FUNCTIONS", "METHODS", "NO_EFFECT", "STREAM", "Dim3", "Options", "Pointer",
    "binary", "convert", "dispatched_dtypes", "dtype_of_type", "type_of",
]  # fmt: skip


@dataclass(frozen=True)
class Options:
    """torch's TensorOptions. All tensors are on the CPU."""

    dtype: torch.dtype


class Dim3(tuple[int, ...]):
    """CUDA's ``dim3``: three numbers, those that are left out 1."""

    def __new__(cls, x: int = 1, y: int = 1, z: int = 1) -> Dim3:
        return super().__new__(cls, (x, y, z))

    def field(self, name: str) -> int:
        """``x``, ``y`` or ``z``.

        Raises:
            ValueError: the name is another.
        """
        return self["xyz".index(name)]


@dataclass(frozen=True)
class Pointer:
    """A pointer into the memory of a tensor.

    Args:
        tensor: the tensor whose first element ``data_ptr`` points to.
        offset: the distance from that element, in bytes.
        step: the size of what it points to, in bytes; None if that is not known, as of ``void*``.
        dtype: the dtype of what it points to; None if it is no element of a tensor, such as ``float4``.
    """

    tensor: torch.Tensor
    offset: int = 0
    step: int | None = None
    dtype: torch.dtype | None = None

    def __bool__(self) -> bool:
        return self.address != 0

    @property
    def address(self) -> int:
        return self.tensor.data_ptr() + self.offset

    def to(self, type_name: str) -> Pointer:
        """What a cast to a pointer to a type gives."""
        dtype = dtype_of_type(type_name)
        step = dtype.itemsize if dtype is not None else _BYTES_OF_OTHERS.get(type_name)
        return Pointer(self.tensor, self.offset, step, dtype)

    def moved(self, count: int) -> Pointer:
        """The pointer to what lies ``count`` steps further.

        Raises:
            NotSimulatedError: the size of a step is not known.
        """
        if self.step is None:
            raise NotSimulatedError("the size of what a pointer points to is not known", fix="cast it to another type")
        return Pointer(self.tensor, self.offset + count * self.step, self.step, self.dtype)

    def memory(self) -> torch.Tensor:
        """The tensor, or a view of its memory from the place that this points to.

        Raises:
            NotSimulatedError: the pointer lies outside of the tensor's memory.
        """
        dtype = self.dtype or self.tensor.dtype
        if not self.offset and dtype == self.tensor.dtype:
            return self.tensor
        sizes = zip(self.tensor.shape, self.tensor.stride(), strict=True)
        count = 1 + sum((size - 1) * stride for size, stride in sizes) if self.tensor.numel() else 0
        span = self.tensor.as_strided((count,), (1,)).view(torch.uint8)
        first = self.tensor.storage_offset() * self.tensor.itemsize
        if not 0 <= self.offset <= len(span) or (first + self.offset) % dtype.itemsize:
            raise NotSimulatedError(
                f"a pointer must lie within its tensor, at a multiple of {dtype.itemsize} bytes, "
                f"got byte {self.offset} of {len(span)}",
                fix="use a GPU",
            )
        rest = span[self.offset :]
        return rest[: len(rest) // dtype.itemsize * dtype.itemsize].view(dtype)


STREAM = object()  # a stream, a guard, a device: nothing depends on them here
CPP_TYPES = {
    torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16",
    torch.uint8: "uint8_t", torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int", torch.int64: "int64_t",
    torch.bool: "bool",
}  # fmt: skip
_OTHER_NAMES = {
    "Half": torch.float16, "half": torch.float16, "__half": torch.float16, "BFloat16": torch.bfloat16,
    "__nv_bfloat16": torch.bfloat16, "nv_bfloat16": torch.bfloat16, "int32_t": torch.int32, "long": torch.int64,
    "long long": torch.int64, "unsigned char": torch.uint8, "short": torch.int16, "signed char": torch.int8,
}  # fmt: skip
_DTYPES = {name.rpartition("::")[2]: dtype for dtype, name in CPP_TYPES.items()} | _OTHER_NAMES
_SCALAR_TYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Byte": torch.uint8, "Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64,
    "Bool": torch.bool,
    **{f"Float{n}": getattr(torch, f"float{n}") for n in (16, 32, 64)},
    **{f"Int{n}": getattr(torch, f"int{n}") for n in (8, 16, 32, 64)}, "UInt8": torch.uint8,
}  # fmt: skip
# torch::kFloat, and at::ScalarType::Float, by their last names.
CONSTANTS: dict[str, Any] = {
    **{f"k{name}": dtype for name, dtype in _SCALAR_TYPES.items()}, **_SCALAR_TYPES,
    "kCUDA": STREAM, "cudaSuccess": 0, "nullopt": None,
    "cudaFuncAttributeMaxDynamicSharedMemorySize": 0,
}  # fmt: skip
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
    "unsigned long long": 64, "uint16_t": 16, "uint8_t": 8, "uintptr_t": 64,
}  # fmt: skip
# Functions and macros that check or order what a GPU does.
NO_EFFECT = frozenset({
    "cudaGetLastError", "cudaPeekAtLastError", "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaFuncSetAttribute",
    "C10_CUDA_KERNEL_LAUNCH_CHECK", "C10_CUDA_CHECK", "AT_CUDA_CHECK", "STD_CUDA_CHECK", "STD_CUDA_KERNEL_LAUNCH_CHECK",
})  # fmt: skip


def dtype_of_type(name: str) -> torch.dtype | None:
    """The dtype of tensors of a C++ type."""
    return _DTYPES.get(name if name in _DTYPES else name.rpartition("::")[2])


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
        return value
    number = int(value)
    low, high = (0, 1 << unsigned) if unsigned is not None else (-(1 << (bits or 1) - 1), 1 << (bits or 1) - 1)
    if not low <= number < high:
        raise ValueError(f"{number} does not fit into {type_name}")
    return number


def type_of(value: Any) -> str:
    """The type of an ``auto`` variable that begins with a value; "auto" if it is no number."""
    if isinstance(value, bool):
        return "bool"
    return {int: "long long", float: "double"}.get(type(value), "auto")


def binary(sign: str, a: Any, b: Any) -> Any:
    """An operation on numbers, pointers and tensors. Quotients of integers are cut off.

    Raises:
        NotSimulatedError: pointers are combined in another way than by adding numbers.
    """
    if isinstance(a, Pointer) or isinstance(b, Pointer):
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
    raise NotSimulatedError(f"a pointer is not simulated with {sign}", fix="add numbers to it only")


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "&": lambda a, b: a & b, "|": lambda a, b: a | b,
    "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b, "^": lambda a, b: a ^ b,
}  # fmt: skip


def dispatched_dtypes(macro: str) -> set[torch.dtype] | None:
    """The dtypes that ``AT_DISPATCH_…`` or a group of ``THO_DISPATCH_V2`` has, but for its arguments; None if it is not
    known."""
    known: set[torch.dtype] = set()
    if "FLOATING_TYPES" in macro or "ALL_TYPES" in macro:
        known |= {torch.float32, torch.float64}
    if "INTEGRAL_TYPES" in macro or "ALL_TYPES" in macro:
        known |= {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    if "_AND_HALF" in macro:
        known.add(torch.float16)
    return None if not known or "COMPLEX" in macro or "QINT" in macro else known


def _data(tensor: torch.Tensor, type_name: str = "void") -> Pointer:
    dtype = dtype_of_type(type_name) if type_name != "void" else tensor.dtype
    if dtype != tensor.dtype:
        raise TypeError(f"expected elements of {type_name}, got {tensor.dtype}")
    return Pointer(tensor).to(type_name)


def _sized(sizes: Any, dtype: Any = None) -> tuple[list[int], torch.dtype]:
    """A shape, and the dtype of options: float32 if they are a device only, or none."""
    chosen = dtype.dtype if isinstance(dtype, Options) else dtype if isinstance(dtype, torch.dtype) else torch.float32
    return [sizes] if isinstance(sizes, int) else list(sizes), chosen


def _empty(sizes: Any, dtype: Any = None) -> torch.Tensor:
    shape, chosen = _sized(sizes, dtype)
    return torch.empty(shape, dtype=chosen)


def _zeros(sizes: Any, dtype: Any = None) -> torch.Tensor:
    shape, chosen = _sized(sizes, dtype)
    return torch.zeros(shape, dtype=chosen)


def _ones(sizes: Any, dtype: Any = None) -> torch.Tensor:
    shape, chosen = _sized(sizes, dtype)
    return torch.ones(shape, dtype=chosen)


def _full(sizes: Any, value: Any, dtype: Any = None) -> torch.Tensor:
    shape, chosen = _sized(sizes, dtype)
    return torch.full(shape, value, dtype=chosen)


def _of_torch(name: str, owner: Any = torch) -> Callable[..., Any]:
    """A function of torch, or a method of ``owner``, with the same positional arguments in C++ and in Python.

    Raises, when it is called:
        NotSimulatedError: with other arguments, such as those that Python takes by keyword.
    """
    function: Callable[..., Any] = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except TypeError as error:
            text = str(error).splitlines()[0]
            raise NotSimulatedError(f"{name} is not simulated with these arguments: {text}", fix="use a GPU") from None

    return call


def _options(dtype: Any = torch.float32) -> Options:
    return Options(dtype if isinstance(dtype, torch.dtype) else torch.float32)


def _ceil_div(a: int, b: int) -> int:
    return int(binary("/", a + b - 1, b))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "empty_like": lambda x: torch.empty_like(x),
    "zeros_like": lambda x: torch.zeros_like(x),
    "ones_like": lambda x: torch.ones_like(x),
    "empty": _empty,
    "zeros": _zeros,
    "ones": _ones,
    "full": _full,
    "full_like": lambda x, value: torch.full_like(x, value),
    "TensorOptions": _options,
    "dtype": _options,
    "device": _options,
    **{name: _of_torch(name) for name in (
        "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "matmul", "mm", "bmm",
        "addmm", "sum", "mean", "relu", "exp", "log", "sigmoid", "tanh", "rsqrt", "cumsum", "cumprod", "stack", "cat",
    )},
    "new_empty": lambda x, sizes, dtype=None: _empty(sizes, dtype or x.dtype),
    "new_zeros": lambda x, sizes, dtype=None: _zeros(sizes, dtype or x.dtype),
    "contiguous": lambda x: x if x is None else x.contiguous(),
    "clone": lambda x: x.clone(),
    "min": lambda a, b: min(a, b),
    "max": lambda a, b: max(a, b),
    **dict.fromkeys(("sqrt", "sqrtf"), lambda x: torch.sqrt(x) if isinstance(x, torch.Tensor) else math.sqrt(x)),
    **dict.fromkeys(("floor", "floorf"), lambda x: float(math.floor(x))),
    **dict.fromkeys(("ceil", "ceilf"), lambda x: float(math.ceil(x))),
    **dict.fromkeys(("pow", "powf"), lambda x, y: x**y),
    "cudaGetErrorString": lambda _: "an error of CUDA",
    "ceil_div": _ceil_div,
    "CeilDiv": _ceil_div,
    "make_tuple": lambda *values: values,
    "getCurrentCUDAStream": lambda *_: STREAM,
    "current_stream": lambda *_: STREAM,
    "device_of": lambda _: STREAM,
}  # fmt: skip
# By name: what gets the object and the arguments; of ``x.data_ptr<float>()``, the type as well.
METHODS: dict[str, Callable[..., Any]] = {
    "size": lambda x, *i: x.size(*i) if i else len(x),
    "stride": lambda x, i: x.stride(i),
    "sizes": lambda x: list(x.shape),
    "strides": lambda x: list(x.stride()),
    "numel": lambda x: x.numel(),
    "dim": lambda x: x.dim(),
    "ndimension": lambda x: x.dim(),
    "element_size": lambda x: x.element_size(),
    "is_contiguous": lambda x: x.is_contiguous(),
    "is_cuda": lambda _: True,
    "is_cpu": lambda _: False,
    "defined": lambda x: x is not None,
    "has_value": lambda x: x is not None,
    "value": lambda x: x,
    "contiguous": lambda x: x.contiguous(),
    "clone": lambda x: x.clone(),
    "new_empty": FUNCTIONS["new_empty"],
    "new_zeros": FUNCTIONS["new_zeros"],
    "zero_": lambda x: x.zero_(),
    "scalar_type": lambda x: x.dtype,
    "dtype": lambda x, dtype=None: x.dtype if dtype is None else Options(dtype),
    "options": lambda x: Options(x.dtype),
    "device": lambda x, _=None: x if isinstance(x, Options) else STREAM,
    "data_ptr": _data,
    "const_data_ptr": _data,
    "mutable_data_ptr": _data,
    "stream": lambda x: x,
    "empty": lambda x: len(x) == 0,
    "vec": lambda x: list(x),
    "back": lambda x: x[-1],
    "requires_grad": lambda x, _: x,
    **{name: _of_torch(name, torch.Tensor) for name in (
        "view", "reshape", "transpose", "permute", "t", "squeeze", "unsqueeze", "flatten", "expand", "narrow", "sum",
        "mean", "pow", "item", "copy_", "fill_", "add_", "mul_", "div_", "add", "mul", "div", "sub", "sqrt", "rsqrt",
        "exp", "matmul", "mm", "bmm", "relu", "view_as", "expand_as",
    )},
}  # fmt: skip
