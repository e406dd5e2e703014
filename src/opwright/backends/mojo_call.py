"""Calling a compiled Mojo kernel: on the CPU through ctypes, on a GPU through the launcher.

Whatever follows from a call's shapes, dtypes and whole numbers (outputs, compile-time parameters, grid, the compiled
artifact itself) is found once and kept as a plan. What is left for each call is to make the arguments contiguous and
aligned, to allocate the outputs and to pass addresses.
"""

from __future__ import annotations

import abc
import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from opwright.backends.device_code import DeviceCode, EntryPoint, Parameter, entries_in_ptx
from opwright.backends.launcher import Configuration, DeviceFunction, as_extent
from opwright.backends.mojo_source import DTYPES, ENTRY, Slot
from opwright.contract.contract import Contract
from opwright.contract.derive import fake_outputs
from opwright.errors import CompileError, LaunchError

__all__ = ["CpuCall", "GpuCall", "Grid", "MojoCall", "Specialise", "Target"]

# Room for what a kernel says when it raises.
_ROOM = 1000
_MOST_PLANS = 1024


@dataclass(frozen=True)
class Target:
    """What a call is specialised for: ``cpu`` or an architecture, and the dtypes of outputs and tensors, in order."""

    arch: str
    dtypes: tuple[torch.dtype, ...]


@dataclass(frozen=True)
class Grid:
    """How a GPU kernel is launched: blocks and threads, each a number, a tuple, or a function of the arguments."""

    blocks: Any
    threads: Any

    def of(self, kernel: str, arguments: Sequence[Any]) -> Configuration:
        """For one call."""
        found = [part(*arguments) if callable(part) else part for part in (self.blocks, self.threads)]
        return Configuration(kernel, as_extent(found[0], "grid", kernel), as_extent(found[1], "block", kernel), 0)


# From a call's arguments and target to the artifact for it: a library, or PTX.
Specialise = Callable[[Sequence[Any], Target], Path]


@dataclass(frozen=True)
class Outputs:
    """Shapes and dtypes."""

    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]


def outputs_for(contract: Contract, arguments: Sequence[Any]) -> Outputs:
    """What the meaning gives for such arguments, found without computing it."""
    on_meta = _pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), list(arguments))
    outputs = fake_outputs(contract, on_meta)
    return Outputs(tuple(o.shape for o in outputs), tuple(o.dtype for o in outputs))


class MojoCall(abc.ABC):
    """A kernel as a callable on an operator's arguments, which were checked against the contract."""

    def __init__(
        self, name: str, contract: Contract, slots: tuple[tuple[Slot, ...], tuple[Slot, ...]], specialise: Specialise,
        alignment: int,
    ) -> None:  # fmt: skip
        self.name = name
        self.contract = contract
        self.outputs, self.arguments = slots
        self._specialise = specialise
        self._alignment = alignment
        self._tensors = tuple(i for i, s in enumerate(self.arguments) if s.tensor is not None)
        self._numbers = tuple(i for i, s in enumerate(self.arguments) if s.tensor is None)
        self._whole = tuple(i for i in self._numbers if self.arguments[i].scalar != "Float64")
        self._returns_tuple = contract.signature.returns_tuple
        self._plans: dict[Any, Any] = {}
        # A kernel that does not compile is not compiled again for every call.
        self._failed: dict[Any, CompileError] = {}

    def __call__(self, *arguments: Any) -> Any:
        tensors = [arguments[i].contiguous() for i in self._tensors]
        if self._alignment > 1:
            tensors = [t.clone() if t.data_ptr() % self._alignment else t for t in tensors]
        seen: list[Any] = []
        for tensor in tensors:
            seen += tensor.shape, tensor.dtype
        key = (tensors[0].get_device(), *seen, *[arguments[i] for i in self._whole])
        plan = self._plans.get(key)
        if plan is None:
            plan = self._remember(key, arguments)
        return self._run(plan, tensors, arguments)

    def _remember(self, key: Any, arguments: Sequence[Any]) -> Any:
        if len(self._plans) >= _MOST_PLANS:  # a bound, should sizes change with every call
            self._plans.clear()
        plan = self._plans[key] = self._plan(arguments)
        return plan

    @abc.abstractmethod
    def _plan(self, arguments: Sequence[Any]) -> Any:
        """What calls like this one share."""

    @abc.abstractmethod
    def _run(self, plan: Any, tensors: list[torch.Tensor], arguments: Sequence[Any]) -> Any:
        """Allocate the outputs, run, and return them as the operator does."""

    def dtypes_of(self, arguments: Sequence[Any]) -> tuple[torch.dtype, ...]:
        """Those of the outputs, then of the tensors."""
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
            return self._specialise(arguments, Target(arch, dtypes))
        except CompileError as error:
            self._failed[key] = error
            raise

    def _shapes_in_order(self, outputs: Outputs, arguments: Sequence[Any]) -> list[tuple[Slot, torch.Size | None]]:
        """Each slot with its tensor's shape; None for a number."""
        given = [a.shape if s.tensor is not None else None for s, a in zip(self.arguments, arguments, strict=True)]
        return [*zip(self.outputs, outputs.shapes, strict=True), *zip(self.arguments, given, strict=True)]


@dataclass(frozen=True)
class _CpuPlan:
    function: Callable[[bytes, bytes, Any, int], int]
    outputs: tuple[tuple[torch.Size, torch.dtype], ...]
    sizes: bytes


class CpuCall(MojoCall):
    """A kernel in a shared library, called with the entry's two arrays (see ``mojo_source.cpu_entry_text``)."""

    def __init__(self, *given: Any, raises: bool) -> None:
        super().__init__(*given)
        self._raises = raises
        formats = ["q"] * len(self.outputs) + ["d" if s.scalar == "Float64" else "q" for s in self.arguments]
        self._pack = struct.Struct("=" + "".join(formats)).pack

    def _plan(self, arguments: Sequence[Any]) -> _CpuPlan:
        outputs = self._outputs_for(arguments)
        function = _c_function(self._artifact("cpu", outputs, arguments))
        sizes = [
            n for s, shape in self._shapes_in_order(outputs, arguments) if shape is not None for n in s.sizes_of(shape)
        ]
        packed = struct.pack(f"={len(sizes)}q", *sizes)
        return _CpuPlan(function, tuple(zip(outputs.shapes, outputs.dtypes, strict=True)), packed)

    def _run(self, plan: _CpuPlan, tensors: list[torch.Tensor], arguments: Sequence[Any]) -> Any:
        outputs = [torch.empty(shape, dtype=dtype) for shape, dtype in plan.outputs]
        words = [t.data_ptr() for t in outputs + tensors]
        for i in self._numbers:  # ascending, so each lands at its own place
            words.insert(len(outputs) + i, arguments[i])
        packed = self._pack(*words)
        if self._raises:
            self._run_and_listen(plan, packed)
        else:
            plan.function(packed, plan.sizes, None, 0)
        return tuple(outputs) if self._returns_tuple else outputs[0]

    def _run_and_listen(self, plan: _CpuPlan, words: bytes) -> None:
        message = ctypes.create_string_buffer(_ROOM)
        if status := plan.function(words, plan.sizes, message, _ROOM):
            said = message.raw[: status - 1].decode(errors="replace")
            raise LaunchError(f"{self.contract.qualname}: the Mojo kernel {self.name!r} raised: {said}")


@functools.cache
def _c_function(library: Path) -> Callable[[bytes, bytes, Any, int], int]:
    """The entry of a library, loaded once for the process."""
    function = getattr(ctypes.CDLL(str(library)), ENTRY)
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64]
    function.restype = ctypes.c_int32
    typed: Callable[[bytes, bytes, Any, int], int] = function
    return typed


@dataclass(frozen=True)
class _GpuPlan:
    function: DeviceFunction
    configuration: Configuration
    outputs: tuple[tuple[torch.Size, torch.dtype], ...]
    # For each word of a launch: where it comes from (outputs, then arguments), or a size.
    words: tuple[tuple[int, int], ...]


# In ``_GpuPlan.words``: the position counts among outputs and tensors, among the operator's arguments; or is a size.
_TENSOR, _NUMBER, _SIZE = range(3)


class GpuCall(MojoCall):
    """A kernel in PTX, launched on torch's current stream."""

    def __init__(self, *given: Any, grid: Grid) -> None:
        super().__init__(*given)
        self._grid = grid

    def _plan(self, arguments: Sequence[Any]) -> _GpuPlan:
        outputs = self._outputs_for(arguments)
        first = arguments[self._tensors[0]]
        major, minor = torch.cuda.get_device_capability(first.device)
        file = self._artifact(f"sm_{major}{minor}", outputs, arguments)
        shaped = self._shapes_in_order(outputs, arguments)
        dtypes = [*outputs.dtypes, *(arguments[i].dtype for i in self._tensors)]
        return _GpuPlan(
            function=_device_function(self.name, file, tuple(self._parameters(dtypes))),
            configuration=self._grid.of(self.name, arguments),
            outputs=tuple(zip(outputs.shapes, outputs.dtypes, strict=True)),
            words=tuple(_words(shaped, len(self.outputs))),
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

    def _run(self, plan: _GpuPlan, tensors: list[torch.Tensor], arguments: Sequence[Any]) -> Any:
        device = tensors[0].device
        outputs = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in plan.outputs]
        sources = ([*outputs, *tensors], arguments)
        words = [value if kind == _SIZE else sources[kind][value] for kind, value in plan.words]
        plan.function.launch(plan.configuration, words, device.index)
        return tuple(outputs) if self._returns_tuple else outputs[0]


def _words(shaped: Sequence[tuple[Slot, torch.Size | None]], outputs: int) -> list[tuple[int, int]]:
    found, tensors = [], 0
    for position, (slot, shape) in enumerate(shaped):
        if shape is None:
            found.append((_NUMBER, position - outputs))
            continue
        found.append((_TENSOR, tensors))
        found += [(_SIZE, size) for size in slot.sizes_of(shape)]
        tensors += 1
    return found


@functools.cache
def _device_function(name: str, file: Path, parameters: tuple[Parameter, ...]) -> DeviceFunction:
    """The kernel of a PTX file, with what PTX does not say of its parameters."""
    found = next(e for e in entries_in_ptx(file.read_text()) if e.symbol == ENTRY)
    if len(found.parameters) != len(parameters):  # the driver would read past what we pass
        raise LaunchError(f"{name}: {file} takes {len(found.parameters)} words, and {len(parameters)} are passed")
    entry = EntryPoint(ENTRY, name, parameters)
    return DeviceFunction(name, DeviceCode(file, "", (entry,), ptx=file), entry)
