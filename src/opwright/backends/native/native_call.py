"""Runs guarded calls of a kernel in one native function instead of in Python.

A ``NativeCall`` describes what the calls of one guard share: the outputs to allocate, the source of each argument of
the kernel, and the kernel. ``templates/native_call.cpp`` makes a function of it, which takes the addresses of tensors,
allocates outputs, and calls a library or the GPU's driver. It is built once for this torch and this Python. If it
cannot be built, kernels are called from Python; so is every call that differs from the description.
"""

from __future__ import annotations

import ctypes
import enum
import functools
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from opwright.backends.base import Launch
from opwright.backends.build_tools import BuildTools
from opwright.backends.native.extension import Extension, build_extension, load_extension
from opwright.backends.native.tensor_access import LIBRARIES, access_to_tensors, address_of, python_headers
from opwright.contract.dtypes import short
from opwright.errors import CacheError, CompileError
from opwright.machine import Compiler

__all__ = [
    "ArgumentSource", "GpuKernel", "KernelArgument", "Library", "NativeCall", "NativeCalls", "Output",
    "contiguous_strides", "native_calls",
]  # fmt: skip

# A call's kernel arguments and outputs are on the native function's stack, hence a limit.
_MOST_ARGUMENTS = 64
_EXTENSION = Extension(
    "native_call",
    sources=("native_call.cpp", "extension.h", "python_tensor.h"),
    flags=("-O2", "-std=c++17", "-fPIC", "-shared", "-Wall", f"-DOPWRIGHT_MOST_ARGUMENTS={_MOST_ARGUMENTS}"),
    libraries=("torch_cpu",),
)


class ArgumentSource(enum.IntEnum):
    """Where a kernel argument comes from; the numbers are those of native_call.cpp."""

    OUTPUT = 0
    TENSOR = 1
    INTEGER = 2
    FLOATING = 3
    CONSTANT = 4
    POINTER = 5
    FLOATING32 = 6


@dataclass(frozen=True)
class KernelArgument:
    """One argument of a kernel, a 64-bit value: the address of an output or of a tensor argument of the call, a
    number argument of the call (each by its position), or a constant.

    Attributes:
        alignment: required alignment of a tensor's address (with the offset), in bytes.
        dtypes: accepted dtypes of a ``POINTER`` (a tensor without a guard); empty for any.
        low, high: the range of an integer.
        offset: the bytes from the address of a tensor to the one that the kernel gets.
    """

    source: ArgumentSource
    value: int
    alignment: int = 1
    dtypes: tuple[torch.dtype, ...] = ()
    low: int = -(1 << 63)
    high: int = (1 << 63) - 1
    offset: int = 0


@dataclass(frozen=True)
class Output:
    """A contiguous tensor that a call allocates."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Library:
    """A function of a shared library, as ``backends.mojo.source.cpu_entry_text`` declares it.

    Attributes:
        raised: raises the error for a kernel's error message.
    """

    entry: int
    sizes: tuple[int, ...]
    raised: Callable[[bytes], None]


@dataclass(frozen=True)
class GpuKernel:
    """A kernel that is loaded and was launched before with this configuration.

    Attributes:
        handle: the driver's.
        parameters: how many of the call's kernel arguments it takes, after those of the kernels before it.
    """

    handle: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    parameters: int


@dataclass(frozen=True)
class NativeCall:
    """The description that guarded calls share.

    Attributes:
        argument_count: the number of arguments of a call.
        outputs: empty for a kernel launch by the user, which returns None; ``fallback`` then reports mistakes.
        returned: how many of the outputs are returned, the first ones; the others are scratch memory.
        device: the device of every tensor. A call while another GPU is current goes to ``fallback``.
        fallback: takes calls that differ from the description, and those that the driver refused.
    """

    argument_count: int
    outputs: tuple[Output, ...]
    returns_tuple: bool
    kernel_arguments: tuple[KernelArgument, ...]
    device: torch.device
    runs: Library | tuple[GpuKernel, ...]
    fallback: Launch
    returned: int = -1

    @property
    def returned_count(self) -> int:
        return len(self.outputs) if self.returned < 0 else self.returned


class NativeCalls:
    """The loaded native extension."""

    def __init__(self, library: Path, access: tuple[int, int | None]) -> None:
        loaded = load_extension(library, access)
        self._make = loaded.opwright_native_call
        self._make.restype = ctypes.py_object
        self._make.argtypes = [ctypes.c_char_p, ctypes.py_object, ctypes.py_object]

    def function_for(self, call: NativeCall) -> Launch | None:
        """The native function of a call's arguments; None if the call is not supported."""
        driver = gpu_functions() if isinstance(call.runs, tuple) else ()
        if driver is None or max(len(call.kernel_arguments), len(call.outputs)) > _MOST_ARGUMENTS:
            return None
        raised = call.runs.raised if isinstance(call.runs, Library) else None
        made: Launch = self._make(array("q", _numbers(call, driver)).tobytes(), call.fallback, raised)
        return made


def _numbers(call: NativeCall, driver: Sequence[int]) -> Iterator[int]:
    """The numbers of a description, in the order in which native_call.cpp reads them."""
    yield from (call.argument_count, call.returns_tuple)
    yield from (
        _torch_number(f"device_type_{call.device.type}"),
        -1 if call.device.index is None else call.device.index,
    )
    yield len(call.outputs)
    for output in call.outputs:
        yield from (_dtype_number(output.dtype), len(output.shape))
        yield from (*output.shape, *contiguous_strides(output.shape))
    yield call.returned_count
    yield len(call.kernel_arguments)
    for argument in call.kernel_arguments:
        dtypes = sum(1 << _dtype_number(d) for d in argument.dtypes)
        yield from (argument.source, argument.value, argument.alignment, dtypes, argument.low, argument.high)
        yield argument.offset
    if isinstance(call.runs, tuple):
        yield from (1, *driver, len(call.runs))
        for kernel in call.runs:
            yield from (kernel.handle, *kernel.grid, *kernel.block, kernel.shared_bytes, kernel.parameters)
    else:
        yield from (0, call.runs.entry, len(call.runs.sizes), *call.runs.sizes)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor as torch computes them: empty dims count as size 1."""
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))


def _dtype_number(dtype: torch.dtype) -> int:
    return _torch_number(f"dtype_{short(dtype)}")


@functools.cache
def _torch_number(name: str) -> int:
    """The number of a dtype or a device type in torch's C interface."""
    return int(getattr(ctypes.CDLL(str(LIBRARIES / "libtorch_cpu.so")), f"aoti_torch_{name}")())


@functools.cache
def gpu_functions() -> tuple[int, int, int] | None:
    """The addresses of the driver's launch and of torch's current stream and device; None without a driver."""
    try:
        launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
        stream = ctypes.CDLL(str(LIBRARIES / "libtorch_cuda.so")).aoti_torch_get_current_cuda_stream
        device = ctypes.CDLL(str(LIBRARIES / "libtorch_cpu.so")).aoti_torch_get_current_device_index
    except (OSError, AttributeError):
        return None
    return address_of(launch), address_of(stream), address_of(device)


@functools.cache
def native_calls(tools: BuildTools) -> NativeCalls | None:
    """The native extension, built on first use; None if it cannot be built, and calls stay in Python."""
    compiler, headers, access = tools.machine.cxx, python_headers(), access_to_tensors()
    if compiler is None or headers is None or access is None:
        return None
    try:
        return NativeCalls(_build(compiler, headers, tools), access)
    except (CompileError, CacheError, OSError) as error:
        tools.notify(f"kernels are called from Python, which costs a few microseconds more: {error}")
        return None


def _build(compiler: Compiler, headers: Path, tools: BuildTools) -> Path:
    return build_extension(_EXTENSION, compiler, headers, tools)
