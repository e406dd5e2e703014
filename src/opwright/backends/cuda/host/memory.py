"""The device memory that simulated host functions allocate, fill, copy and free themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from opwright.backends.cuda.host.addresses import Variable
from opwright.backends.cuda.host.values import Pointer, convert, dtype_of_type

__all__ = ["COPY_KINDS", "MEMORY"]

# The directions of ``cudaMemcpy``: from where, and to where.
COPY_KINDS = {
    "cudaMemcpyHostToDevice": ("host", "device"), "cudaMemcpyDeviceToHost": ("device", "host"),
    "cudaMemcpyDeviceToDevice": ("device", "device"), "cudaMemcpyDefault": ("", ""),
}  # fmt: skip


def _allocate(variable: Variable, size: int, *_stream: Any) -> int:
    if not variable.type_name.endswith("*"):
        raise TypeError(f"cudaMalloc assigns to a pointer, got a {variable.type_name}")
    memory = Pointer(torch.empty(size, dtype=torch.uint8), is_allocated=True)
    variable.assign(memory.to(variable.type_name[:-1].strip()))
    return 0


def _free(pointer: Pointer | None, *_stream: Any) -> int:
    if pointer is None:
        return 0
    if not pointer.is_allocated or pointer.offset:
        raise ValueError("cudaFree must be given what cudaMalloc returned, got another address")
    pointer.refuse_freed()
    pointer.tensor.untyped_storage().resize_(0)
    return 0


def _fill(pointer: Pointer, value: int, count: int, *_stream: Any) -> int:
    _place(pointer, count).fill_(value & 0xFF)
    return 0


def _copy(to: Pointer | Variable, source: Pointer | Variable, count: int, kind: tuple[str, str], *_stream: Any) -> int:
    sides = tuple("host" if isinstance(end, Variable) else "device" for end in (source, to))
    if kind not in (sides, ("", "")) or sides == ("host", "host"):
        raise TypeError(f"a copy from {sides[0]} to {sides[1]}")
    if isinstance(source, Variable):
        values = torch.tensor([source.read()], dtype=_dtype(source, count)).view(torch.uint8)
    else:
        values = _place(source, count).clone()
    if isinstance(to, Variable):
        to.assign(convert(values.view(_dtype(to, count)).item(), to.type_name))
    else:
        _place(to, count).copy_(values)
    return 0


def _dtype(variable: Variable, count: int) -> torch.dtype:
    """That of a variable of the host, all of which is copied."""
    dtype = dtype_of_type(variable.type_name)
    if dtype is None or dtype.itemsize != count:
        raise TypeError(f"a copy of {count} bytes of a variable of type {variable.type_name}")
    return dtype


def _place(pointer: Pointer, count: int) -> torch.Tensor:
    """The bytes from a pointer on.

    Raises:
        ValueError: the memory ends before.
    """
    memory = pointer.bytes()
    if not 0 <= count <= len(memory):
        raise ValueError(f"{count} bytes are used, of {len(memory)}")
    return memory[:count]


# By name: what gets the values of its arguments, and of ``&x`` the variable.
MEMORY: dict[str, Callable[..., int]] = {
    "cudaMalloc": _allocate, "cudaMallocAsync": _allocate, "cudaFree": _free, "cudaFreeAsync": _free,
    "cudaMemset": _fill, "cudaMemsetAsync": _fill, "cudaMemcpy": _copy, "cudaMemcpyAsync": _copy,
}  # fmt: skip
