"""Calling a compiled Mojo kernel: on the CPU through ctypes, on a GPU through the launcher.

Everything that depends only on a call's shapes, dtypes and integers (outputs, compile-time parameters, grid, the
compiled artifact) is computed once and kept as a prepared call. Each call then makes the arguments contiguous and
aligned, allocates the outputs and passes addresses: guarded calls in one native function (``native_call``), others in
Python.

opwright generates the entry that is called, and no author declares it in C: so Mojo's compiler compares the kernel's
parameters with the operator's. On the CPU the entry takes two arrays, because ctypes takes longer for each argument.
"""

from __future__ import annotations

import abc
import ctypes
import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opwright import tree
from opwright.backends.base import Launch
from opwright.backends.gpu.device_code import DeviceCode, EntryPoint, Parameter, entries_in_ptx
from opwright.backends.gpu.launcher import Configuration, DeviceFunction, as_extent
from opwright.backends.mojo.source import DTYPES, ENTRY, Slot
from opwright.backends.native.native_call import (
    ArgumentSource,
    GpuKernel,
    KernelArgument,
    Library,
    NativeCall,
    NativeCalls,
    Output,
)
from opwright.backends.native.tensor_access import address_of
from opwright.contract.contract import Contract
from opwright.contract.derive import fake_outputs
from opwright.errors import CompileError, LaunchError

__all__ = ["BuildTarget", "CpuCall", "GpuCall", "Grid", "MojoCall", "Specialise"]

# The bytes of the buffer for the message of a kernel that raises.
_MESSAGE_BYTES = 1000
_NO_MESSAGE = ctypes.c_int64(0)
_MOST_PREPARED = 1024


@dataclass(frozen=True)
class BuildTarget:
    """What a call is specialised for: ``cpu`` or an architecture, and the dtypes of outputs and tensors, in order."""

    arch: str
    dtypes: tuple[torch.dtype, ...]


@dataclass(frozen=True)
class Grid:
    """How a GPU kernel is launched: blocks and threads, each a number, a tuple, or a function of the arguments."""

    blocks: Any
    threads: Any

    def of(self, kernel: str, arguments: Sequence[Any]) -> Configuration:
        """The launch configuration of one call."""
        found = [part(*arguments) if callable(part) else part for part in (self.blocks, self.threads)]
        return Configuration(kernel, as_extent(found[0], "grid", kernel), as_extent(found[1], "block", kernel), 0)


# Takes the packed arguments, the sizes, and a buffer for a message with its length.
_CFunction = Callable[[bytes, bytes, Any, ctypes.c_int64], int]
# Returns the artifact for a call's arguments and target: a library, or PTX.
Specialise = Callable[[Sequence[Any], BuildTarget], Path]


@dataclass(frozen=True)
class Outputs:
    """The shapes and dtypes of a call's outputs."""

    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]

    def __iter__(self) -> Iterator[tuple[torch.Size, torch.dtype]]:
        return iter(zip(self.shapes, self.dtypes, strict=True))

    def allocate(self, device: torch.device) -> list[torch.Tensor]:
        """Uninitialised tensors of these shapes and dtypes."""
        return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self]


def outputs_for(contract: Contract, arguments: Sequence[Any]) -> Outputs:
    """The shapes and dtypes of the reference's outputs, without computing them."""
    on_meta = tree.map_tensors(lambda t: t.to("meta"), list(arguments))
    outputs = fake_outputs(contract, on_meta)
    return Outputs(tuple(o.shape for o in outputs), tuple(o.dtype for o in outputs))


class MojoCall(abc.ABC):
    """A kernel as a callable on an operator's arguments, which have been checked against the contract."""

    free_kinds = (float,)  # outputs and blocks may depend on the others

    def __init__(
        self, name: str, contract: Contract, slots: tuple[tuple[Slot, ...], tuple[Slot, ...]], specialise: Specialise,
        alignment: int, native: Callable[[], NativeCalls | None] = lambda: None,
    ) -> None:  # fmt: skip
        self.name = name
        self.contract = contract
        self.outputs, self.arguments = slots
        self._specialise = specialise
        self._alignment = alignment
        self._native = native
        self._tensors = tuple(i for i, s in enumerate(self.arguments) if s.tensor is not None)
        self._numbers = tuple(i for i, s in enumerate(self.arguments) if s.tensor is None)
        self._whole = tuple(i for i in self._numbers if self.arguments[i].scalar != "Float64")
        self._returns_tuple = contract.signature.returns_tuple
        self._prepared_calls: dict[Any, Any] = {}
        # A kernel that does not compile is not compiled again for every call.
        self._failed: dict[Any, CompileError] = {}

    def __call__(self, *arguments: Any) -> Any:
        tensors = [arguments[i].contiguous() for i in self._tensors]
        if self._alignment > 1:
            tensors = [t.clone() if t.data_ptr() % self._alignment else t for t in tensors]
        key = self._key(arguments, tensors)
        prepared = self._prepared_calls.get(key)
        return self._run(self._remember(key, arguments) if prepared is None else prepared, tensors, arguments)

    def for_calls_like(self, arguments: Sequence[Any]) -> Launch:
        """See ``base.launch_for_calls_like``. Returns self if tensors must be copied or this kernel did not run."""
        tensors = [arguments[i] for i in self._tensors]
        prepared = self._prepared_calls.get(self._key(arguments, tensors))
        if prepared is None or not all(t.is_contiguous() for t in tensors):
            return self
        return self._native_launch(prepared, tensors[0].device) or self

    def _native_launch(self, prepared: Any, device: torch.device) -> Launch | None:
        """One native function for the prepared call on contiguous arguments; None if it is not available."""
        native, runs = self._native(), self._runs(prepared)
        if native is None or runs is None:
            return None
        call = NativeCall(
            argument_count=len(self.arguments),
            outputs=tuple(Output(tuple(shape), dtype) for shape, dtype in prepared.outputs),
            returns_tuple=self._returns_tuple,
            kernel_arguments=prepared.kernel_arguments,
            device=device,
            runs=runs,
            fallback=self,
        )
        return native.function_for(call)

    @abc.abstractmethod
    def _runs(self, prepared: Any) -> Library | tuple[GpuKernel, ...] | None:
        """The compiled kernel for the native function; None before it is loaded."""

    def _key(self, arguments: Sequence[Any], tensors: Sequence[torch.Tensor]) -> Any:
        seen: list[Any] = []
        for tensor in tensors:
            seen += tensor.shape, tensor.dtype
        return (tensors[0].get_device(), *seen, *[arguments[i] for i in self._whole])

    def _remember(self, key: Any, arguments: Sequence[Any]) -> Any:
        if len(self._prepared_calls) >= _MOST_PREPARED:  # a bound, should sizes change with every call
            self._prepared_calls.clear()
        prepared = self._prepared_calls[key] = self._prepare(arguments)
        self._native()  # so that the native extension is built now, not in a later call
        return prepared

    def _result(self, outputs: list[torch.Tensor]) -> Any:
        return tuple(outputs) if self._returns_tuple else outputs[0]

    @abc.abstractmethod
    def _prepare(self, arguments: Sequence[Any]) -> Any:
        """The prepared call for this call and others with the same key."""

    @abc.abstractmethod
    def _run(self, prepared: Any, tensors: list[torch.Tensor], arguments: Sequence[Any]) -> Any:
        """Allocate the outputs, run, and return them as the operator does."""

    def dtypes_of(self, arguments: Sequence[Any]) -> tuple[torch.dtype, ...]:
        """The dtypes of the outputs, then of the tensors."""
        return (*self._outputs_for(arguments).dtypes, *(arguments[i].dtype for i in self._tensors))

    def _outputs_for(self, arguments: Sequence[Any]) -> Outputs:
        return outputs_for(self.contract, arguments)

    def _artifact(self, arch: str, outputs: Outputs, arguments: Sequence[Any]) -> Path:
        dtypes = (*outputs.dtypes, *(arguments[i].dtype for i in self._tensors))
        numbers = tuple(arguments[i] for i in self._whole)
        key = (arch, dtypes, numbers, tuple(arguments[i].shape for i in self._tensors))
        if key in self._failed:
            raise self._failed[key]
        try:
            return self._specialise(arguments, BuildTarget(arch, dtypes))
        except CompileError as error:
            self._failed[key] = error
            raise

    def _kernel_arguments(
        self, outputs: Outputs, arguments: Sequence[Any], with_sizes: bool
    ) -> Iterator[KernelArgument]:
        """A kernel's arguments in order: outputs and operator arguments, with or without the sizes of each tensor."""
        for position, (slot, shape) in enumerate(self._shapes_in_order(outputs, arguments)):
            argument = position - len(self.outputs)
            if argument < 0:
                yield KernelArgument(ArgumentSource.OUTPUT, position)
            elif slot.tensor is not None:
                alignment = max(self._alignment, arguments[argument].element_size())
                yield KernelArgument(ArgumentSource.TENSOR, argument, alignment)
            else:
                is_float = slot.scalar == "Float64"
                yield KernelArgument(ArgumentSource.FLOATING if is_float else ArgumentSource.INTEGER, argument)
            if shape is not None and with_sizes:
                yield from (KernelArgument(ArgumentSource.CONSTANT, size) for size in slot.sizes_of(shape))

    def _shapes_in_order(self, outputs: Outputs, arguments: Sequence[Any]) -> list[tuple[Slot, torch.Size | None]]:
        """Each slot with its tensor's shape; None for a number."""
        shapes = [a.shape if s.tensor is not None else None for s, a in zip(self.arguments, arguments, strict=True)]
        return [*zip(self.outputs, outputs.shapes, strict=True), *zip(self.arguments, shapes, strict=True)]


@dataclass(frozen=True)
class _PreparedCpuCall:
    outputs: Outputs
    kernel_arguments: tuple[KernelArgument, ...]
    sizes: tuple[int, ...]
    packed_sizes: bytes
    function: _CFunction


class CpuCall(MojoCall):
    """A kernel in a shared library, called with the entry's two arrays (see ``source.cpu_entry_text``)."""

    def __init__(self, *common: Any, raises: bool) -> None:
        super().__init__(*common)
        self._raises = raises
        formats = ["q"] * len(self.outputs) + ["d" if s.scalar == "Float64" else "q" for s in self.arguments]
        self._pack = struct.Struct("=" + "".join(formats)).pack

    def _prepare(self, arguments: Sequence[Any]) -> _PreparedCpuCall:
        outputs = self._outputs_for(arguments)
        function = _c_function(self._artifact("cpu", outputs, arguments))
        shaped = self._shapes_in_order(outputs, arguments)
        sizes = tuple(n for slot, shape in shaped if shape is not None for n in slot.sizes_of(shape))
        passed = tuple(self._kernel_arguments(outputs, arguments, with_sizes=False))
        return _PreparedCpuCall(outputs, passed, sizes, struct.pack(f"={len(sizes)}q", *sizes), function)

    def _run(self, prepared: _PreparedCpuCall, tensors: list[torch.Tensor], arguments: Sequence[Any]) -> Any:
        outputs = prepared.outputs.allocate(tensors[0].device)
        values = list(arguments)
        for position, tensor in zip(self._tensors, tensors, strict=True):
            values[position] = tensor.data_ptr()
        packed = self._pack(*(output.data_ptr() for output in outputs), *values)
        if self._raises:
            self._run_with_message(prepared.function, packed, prepared.packed_sizes)
        else:
            prepared.function(packed, prepared.packed_sizes, None, _NO_MESSAGE)
        return self._result(outputs)

    def _runs(self, prepared: _PreparedCpuCall) -> Library:
        return Library(address_of(prepared.function), prepared.sizes, self._raise)

    def _run_with_message(self, function: _CFunction, packed: bytes, sizes: bytes) -> None:
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        if status := function(packed, sizes, message, ctypes.c_int64(_MESSAGE_BYTES)):
            self._raise(message.raw[: status - 1])

    def _raise(self, message: bytes) -> None:
        text = message.decode(errors="replace")
        raise LaunchError(f"{self.contract.qualname}: the Mojo kernel {self.name!r} raised: {text}")


@functools.cache
def _c_function(library: Path) -> _CFunction:
    """The entry of a library, loaded once for the process.

    Its argument types are not declared, which would cost ctypes 0.1 – 0.2 µs per call: bytes and None are
    passed as pointers, and the number is a ``c_int64``.
    """
    function = getattr(ctypes.CDLL(str(library)), ENTRY)
    function.restype = ctypes.c_int32
    typed: _CFunction = function
    return typed


@dataclass(frozen=True)
class _PreparedGpuCall:
    function: DeviceFunction
    configuration: Configuration
    device: int
    outputs: Outputs
    kernel_arguments: tuple[KernelArgument, ...]


class GpuCall(MojoCall):
    """A kernel in PTX, launched on torch's current stream."""

    def __init__(self, *common: Any, grid: Grid) -> None:
        super().__init__(*common)
        self._grid = grid

    def _prepare(self, arguments: Sequence[Any]) -> _PreparedGpuCall:
        outputs = self._outputs_for(arguments)
        first = arguments[self._tensors[0]]
        major, minor = torch.cuda.get_device_capability(first.device)
        file = self._artifact(f"sm_{major}{minor}", outputs, arguments)
        dtypes = [*outputs.dtypes, *(arguments[i].dtype for i in self._tensors)]
        return _PreparedGpuCall(
            function=_device_function(self.name, file, tuple(self._parameters(dtypes))),
            configuration=self._grid.of(self.name, arguments),
            device=first.get_device(),
            outputs=outputs,
            kernel_arguments=tuple(self._kernel_arguments(outputs, arguments, with_sizes=True)),
        )

    def _parameters(self, dtypes: Sequence[torch.dtype]) -> list[Parameter]:
        found, remaining = [], iter(dtypes)
        for slot in (*self.outputs, *self.arguments):
            if slot.tensor is not None:
                dtype = next(remaining)
                alignment = max(self._alignment, dtype.itemsize)
                pointer = f"Pointer[Scalar[{DTYPES[dtype]}]]"
                found.append(Parameter("pointer", 8, pointer, (dtype,), alignment, slot in self.outputs))
                found += [Parameter("integer", 8, "Int64")] * slot.sizes
            else:
                is_float = slot.scalar == "Float64"
                found.append(Parameter("floating" if is_float else "integer", 8, slot.scalar))
        return found

    def _run(self, prepared: _PreparedGpuCall, tensors: list[torch.Tensor], arguments: Sequence[Any]) -> Any:
        outputs = prepared.outputs.allocate(tensors[0].device)
        values = [*arguments]
        for position, tensor in zip(self._tensors, tensors, strict=True):
            values[position] = tensor
        passed = [
            a.value
            if a.source is ArgumentSource.CONSTANT
            else (outputs if a.source is ArgumentSource.OUTPUT else values)[a.value]
            for a in prepared.kernel_arguments
        ]
        prepared.function.launch(prepared.configuration, passed, prepared.device)
        return self._result(outputs)

    def _runs(self, prepared: _PreparedGpuCall) -> tuple[GpuKernel, ...] | None:
        kernel = prepared.function.prepared(prepared.configuration, prepared.device)
        return None if kernel is None else (kernel,)


@functools.cache
def _device_function(name: str, file: Path, parameters: tuple[Parameter, ...]) -> DeviceFunction:
    """The kernel of a PTX file, with the parameter types that PTX lacks."""
    found = next(e for e in entries_in_ptx(file.read_text()) if e.symbol == ENTRY)
    if len(found.parameters) != len(parameters):  # the driver would read past the arguments
        raise LaunchError(f"{name}: {file} takes {len(found.parameters)} arguments, and {len(parameters)} are passed")
    entry = EntryPoint(ENTRY, name, parameters)
    return DeviceFunction(name, DeviceCode(file, "", (entry,), ptx=file), entry)
