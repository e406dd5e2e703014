"""Functions that simulated host functions call with addresses of their variables: queries of the device, and cuBLAS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from opwright.backends.cuda.host.values import CPP_TYPES, Pointer, dtype_of_type
from opwright.errors import NotSimulatedError

__all__ = ["ATTRIBUTES", "CUBLAS", "DEVICE", "HANDLE", "WITH_ADDRESSES", "DeviceProperties", "Variable", "succeeded"]


@dataclass(frozen=True)
class Variable:
    """The address of a variable of a host function, whose type C++ does not convert."""

    type_name: str
    read: Callable[[], Any]
    assign: Callable[[Any], Any]


@dataclass(frozen=True)
class DeviceProperties:
    """``cudaDeviceProp``, with those of its fields on which a kernel's results must not depend."""

    fields: Mapping[str, int]

    def field(self, name: str) -> int:
        """The value of a field.

        Raises:
            ValueError: the field is another.
        """
        if name not in self.fields:
            raise ValueError(f"no {name} is known of the simulated device")
        return self.fields[name]


# The simulated device: an H200's multiprocessors, and the limits of compute capability 9.0 (CUDA's programming guide).
DEVICE = DeviceProperties(
    MappingProxyType({
        "multiProcessorCount": 132, "warpSize": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerMultiProcessor": 2048,
        "sharedMemPerBlock": 48 * 1024, "sharedMemPerBlockOptin": 227 * 1024, "sharedMemPerMultiprocessor": 228 * 1024,
        "regsPerBlock": 65_536, "regsPerMultiprocessor": 65_536,
    })
)  # fmt: skip
# Attributes by the fields that have the same value.
ATTRIBUTES = {
    "cudaDevAttrMultiProcessorCount": "multiProcessorCount",
    "cudaDevAttrWarpSize": "warpSize",
    "cudaDevAttrMaxThreadsPerBlock": "maxThreadsPerBlock",
    "cudaDevAttrMaxThreadsPerMultiProcessor": "maxThreadsPerMultiProcessor",
    "cudaDevAttrMaxSharedMemoryPerBlock": "sharedMemPerBlock",
    "cudaDevAttrMaxSharedMemoryPerBlockOptin": "sharedMemPerBlockOptin",
    "cudaDevAttrMaxSharedMemoryPerMultiprocessor": "sharedMemPerMultiprocessor",
    "cudaDevAttrMaxRegistersPerBlock": "regsPerBlock",
}
# cuBLAS's constants: whether a matrix is transposed, types of elements, and what a call returns.
CUBLAS: dict[str, Any] = {
    "CUBLAS_OP_N": False, "CUBLAS_OP_T": True, "CUBLAS_STATUS_SUCCESS": 0,
    "CUDA_R_32F": torch.float32, "CUDA_R_16F": torch.float16, "CUDA_R_16BF": torch.bfloat16,
    "CUBLAS_COMPUTE_32F": torch.float32, "CUBLAS_GEMM_DEFAULT": -1, "CUBLAS_GEMM_DEFAULT_TENSOR_OP": 99,
}  # fmt: skip
_NOT_INITIALIZED, _INVALID_VALUE = 1, 7
HANDLE = object()


def succeeded(status: int) -> int:
    """``TORCH_CUDABLAS_CHECK``.

    Raises:
        ValueError: cuBLAS has refused a call.
    """
    if status:
        names = {_NOT_INITIALIZED: "CUBLAS_STATUS_NOT_INITIALIZED", _INVALID_VALUE: "CUBLAS_STATUS_INVALID_VALUE"}
        raise ValueError(f"cuBLAS returned {names[status]}")
    return status


def _of_type(variable: Variable, type_name: str) -> Variable:
    """A variable whose address is that of a type: another one would be read, or written, as bytes of this type."""
    if variable.type_name != type_name:
        raise TypeError(f"the address of a variable of type {variable.type_name}, for a {type_name}*")
    return variable


def _get(value: Any, type_name: str = "int") -> Callable[..., int]:
    """A function that assigns one value to its first argument."""

    def call(variable: Variable, *_: Any) -> int:
        _of_type(variable, type_name).assign(value)
        return 0

    return call


def _attribute(variable: Variable, attribute: str, device: int) -> int:
    _refuse_other(device)
    return _get(DEVICE.field(ATTRIBUTES[attribute]))(variable)


def _properties(variable: Variable, device: int) -> int:
    _refuse_other(device)
    return _get(DEVICE, "cudaDeviceProp")(variable)


def _refuse_other(device: int) -> None:
    if device != 0:
        raise TypeError(f"device {device}, of one")


@dataclass(frozen=True)
class _Matrix:
    """An operand of cuBLAS, in columns.

    Args:
        memory: where its first element lies.
        dtype: the type of its elements.
        leading: the elements from a column to the next one.
        is_transposed: whether the product takes its transpose.
    """

    memory: Pointer
    dtype: torch.dtype
    leading: int
    is_transposed: bool = False

    def view(self, rows: int, columns: int) -> torch.Tensor:
        """What the product takes, of this shape.

        Raises:
            ValueError: it does not lie within its tensor.
        """
        stored = (columns, rows) if self.is_transposed else (rows, columns)
        count = (stored[1] - 1) * self.leading + stored[0] if rows and columns else 0
        found = self.memory.bytes()
        if found.storage_offset() % self.dtype.itemsize:
            raise NotSimulatedError("a matrix of cuBLAS must lie at a multiple of its elements' size", fix="use a GPU")
        if count * self.dtype.itemsize > len(found):
            here = len(found) // self.dtype.itemsize
            raise ValueError(
                f"a matrix of cuBLAS must lie within its tensor, got {count} elements in a place for {here}"
            )
        flat = found[: count * self.dtype.itemsize].view(self.dtype)
        matrix = flat.as_strided(stored, (1, self.leading)) if count else flat.new_empty(stored)
        return matrix.t() if self.is_transposed else matrix

    def is_valid(self, rows: int, columns: int) -> bool:
        return self.leading >= max(1, columns if self.is_transposed else rows)


def _multiply(handle: Any, m: int, n: int, k: int, scales: tuple[Any, Any], a: _Matrix, b: _Matrix, c: _Matrix) -> int:
    """``c = scales[0] * a @ b + scales[1] * c``, summed in float32 or more. What has a wrong size changes nothing."""
    if handle is not HANDLE:
        return _NOT_INITIALIZED
    sums = torch.float64 if c.dtype == torch.float64 else torch.float32
    alpha, beta = (_of_type(scale, CPP_TYPES[sums]).read() for scale in scales)
    if min(m, n, k) < 0 or not (a.is_valid(m, k) and b.is_valid(k, n) and c.is_valid(m, n)):
        return _INVALID_VALUE
    if m and n:
        product = alpha * (a.view(m, k).to(sums) @ b.view(k, n).to(sums))
        out = c.view(m, n)
        out.copy_(product + beta * out.to(sums) if beta else product)  # cuBLAS does not read it if beta is zero
    return 0


def _gemm(type_name: str) -> Callable[..., int]:
    """``cublasSgemm`` and ``cublasDgemm``."""
    dtype: Any = dtype_of_type(type_name)

    def call(handle: Any, ta: bool, tb: bool, m: int, n: int, k: int, alpha: Variable, a: Pointer, lda: int,
             b: Pointer, ldb: int, beta: Variable, c: Pointer, ldc: int) -> int:  # fmt: skip
        for pointer in (a, b, c):
            if pointer.dtype != dtype:
                raise TypeError(f"a matrix of {pointer.type_name}, for a {type_name}*")
        factors = _Matrix(a, dtype, lda, ta), _Matrix(b, dtype, ldb, tb)
        return _multiply(handle, m, n, k, (alpha, beta), *factors, _Matrix(c, dtype, ldc))

    return call


def _strided(type_name: str) -> Callable[..., int]:
    """``cublasSgemmStridedBatched`` and ``cublasDgemmStridedBatched``."""
    one = _gemm(type_name)

    def call(handle: Any, ta: bool, tb: bool, m: int, n: int, k: int, alpha: Variable, a: Pointer, lda: int,
             step_a: int, b: Pointer, ldb: int, step_b: int, beta: Variable, c: Pointer, ldc: int, step_c: int,
             count: int) -> int:  # fmt: skip
        for i in range(count):
            at = a.moved(i * step_a), b.moved(i * step_b), c.moved(i * step_c)
            status = one(handle, ta, tb, m, n, k, alpha, at[0], lda, at[1], ldb, beta, at[2], ldc)
            if status:
                return status
        return 0 if count >= 0 else _INVALID_VALUE

    return call


def _gemm_ex(handle: Any, ta: bool, tb: bool, m: int, n: int, k: int, alpha: Variable, a: Pointer,
             type_a: torch.dtype, lda: int, b: Pointer, type_b: torch.dtype, ldb: int, beta: Variable, c: Pointer,
             type_c: torch.dtype, ldc: int, sums: torch.dtype, algorithm: int) -> int:  # fmt: skip
    """``cublasGemmEx`` with sums in float32. cuBLAS takes factors of one type, and a product of theirs or float32."""
    if sums != torch.float32 or type_a != type_b or type_c not in (type_a, torch.float32):
        raise TypeError("cublasGemmEx with these types")
    factors = _Matrix(a, type_a, lda, ta), _Matrix(b, type_b, ldb, tb)
    return _multiply(handle, m, n, k, (alpha, beta), *factors, _Matrix(c, type_c, ldc))


# By name: what gets the values of its arguments, and of ``&x`` the variable.
WITH_ADDRESSES: dict[str, Callable[..., Any]] = {
    "cudaGetDevice": _get(0),
    "cudaGetDeviceCount": _get(1),
    "cudaGetDeviceProperties": _properties,
    "cudaDeviceGetAttribute": _attribute,
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor": _get(1),  # as of a kernel with many registers
    "cublasCreate": _get(HANDLE, "cublasHandle_t"),
    "cublasSgemm": _gemm("float"),
    "cublasDgemm": _gemm("double"),
    "cublasSgemmStridedBatched": _strided("float"),
    "cublasDgemmStridedBatched": _strided("double"),
    "cublasGemmEx": _gemm_ex,
}
