"""Calling a compiled Mojo kernel: on the CPU through ctypes, on a GPU through the launcher.

Whatever follows from a call's shapes, dtypes and whole numbers (outputs, compile-time parameters, grid, the compiled
artifact itself) is found once and kept as a plan. What is left for each call is to make the arguments contiguous and
aligned, to allocate the outputs and to pass addresses: for calls that are recognised, in one native function
(``planned_call``), or where that cannot be built in a Python function that is written out.
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
from torch._C._dynamo.guards import _empty_strided_cpu, _empty_strided_cuda  # type: ignore[attr-defined]
from torch._prims_common import make_contiguous_strides_for

from opwright import tree
from opwright.backends.base import Launch
from opwright.backends.gpu.device_code import DeviceCode, EntryPoint, Parameter, entries_in_ptx
from opwright.backends.gpu.launcher import Configuration, DeviceFunction, as_extent
from opwright.backends.mojo.source import DTYPES, ENTRY, Slot
from opwright.backends.native.native_call import GpuKernel, Library, NativeCalls, Output, PlannedCall, Source, Word
from opwright.backends.native.tensor_access import address_of
from opwright.contract.contract import Contract
from opwright.contract.derive import fake_outputs
from opwright.errors import CompileError, LaunchError

__all__ = ["CpuCall", "GpuCall", "Grid", "MojoCall", "Specialise", "Target"]

# Room for what a kernel says when it raises.
_ROOM = 1000
_NO_ROOM = ctypes.c_int64(0)
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


# Takes words, sizes, and room for a message with its length.
_CFunction = Callable[[bytes, bytes, Any, ctypes.c_int64], int]
# From a call's arguments and target to the artifact for it: a library, or PTX.
Specialise = Callable[[Sequence[Any], Target], Path]


@dataclass(frozen=True)
class Outputs:
    """Shapes and dtypes."""

    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]


def outputs_for(contract: Contract, arguments: Sequence[Any]) -> Outputs:
    """What the meaning gives for such arguments, found without computing it."""
    on_meta = tree.map_tensors(lambda t: t.to("meta"), list(arguments))
    outputs = fake_outputs(contract, on_meta)
    return Outputs(tuple(o.shape for o in outputs), tuple(o.dtype for o in outputs))


class MojoCall(abc.ABC):
    """A kernel as a callable on an operator's arguments, which were checked against the contract."""

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
        self._plans: dict[Any, Any] = {}
        # A kernel that does not compile is not compiled again for every call.
        self._failed: dict[Any, CompileError] = {}

    def __call__(self, *arguments: Any) -> Any:
        tensors = [arguments[i].contiguous() for i in self._tensors]
        if self._alignment > 1:
            tensors = [t.clone() if t.data_ptr() % self._alignment else t for t in tensors]
        key = self._key(arguments, tensors)
        plan = self._plans.get(key)
        return self._run(self._remember(key, arguments) if plan is None else plan, tensors, arguments)

    def for_calls_like(self, arguments: Sequence[Any]) -> Launch:
        """See ``base.launch_for_calls_like``: itself where tensors have to be copied, or this kernel did not run."""
        tensors = [arguments[i] for i in self._tensors]
        plan = self._plans.get(self._key(arguments, tensors))
        if plan is None or not all(t.is_contiguous() for t in tensors):
            return self
        launch = self._native_launch(plan, tensors[0].device)
        if launch is None and self._alignment == 1:  # only the native function looks at addresses
            launch = self._launch_of(plan)
        return launch or self

    def _native_launch(self, plan: Any, device: torch.device) -> Launch | None:
        """What runs contiguous arguments that a plan is for as one native function, where there is one."""
        native, runs = self._native(), self._runs(plan)
        if native is None or runs is None:
            return None
        planned = PlannedCall(
            arguments=len(self.arguments),
            outputs=tuple(Output(tuple(s), d) for s, d in zip(plan.outputs.shapes, plan.outputs.dtypes, strict=True)),
            returns_tuple=self._returns_tuple,
            words=plan.words,
            device=device,
            runs=runs,
            otherwise=self,
        )
        return native.function_for(planned)

    @abc.abstractmethod
    def _runs(self, plan: Any) -> Library | GpuKernel | None:
        """What the native function runs; None as long as that is not known."""

    @abc.abstractmethod
    def _launch_of(self, plan: Any) -> Launch:
        """What runs contiguous, aligned arguments that a plan is for, in Python."""

    def _key(self, arguments: Sequence[Any], tensors: Sequence[torch.Tensor]) -> Any:
        seen: list[Any] = []
        for tensor in tensors:
            seen += tensor.shape, tensor.dtype
        return (tensors[0].get_device(), *seen, *[arguments[i] for i in self._whole])

    def _remember(self, key: Any, arguments: Sequence[Any]) -> Any:
        if len(self._plans) >= _MOST_PLANS:  # a bound, should sizes change with every call
            self._plans.clear()
        plan = self._plans[key] = self._plan(arguments)
        self._native()  # it is built with the kernel, not by a later call
        return plan

    def _names(self) -> list[str]:
        """What ``_written_out`` calls the outputs, then the arguments."""
        return [f"o{i}" for i in range(len(self.outputs))] + [f"a{i}" for i in range(len(self.arguments))]

    def _written_out(self, outputs: Outputs, empty: Callable[..., Any], how: str, scope: dict[str, Any]) -> Launch:
        """A function of contiguous, aligned arguments, for one set of shapes and dtypes.

        It is written out as text, because a call is timed in microseconds: an addition of 1,024 floats on the CPU takes
        1.3 µs through it, and 3.6 µs with the look-up before it (benchmarks/results/2026-11-21-cpu-calls.json). Where
        there is a compiler, such a call is native and takes 0.6 µs.

        Args:
            empty: allocates, given a shape, strides and a dtype.
            how: the statement that runs the kernel.
            scope: what it names besides outputs and arguments.
        """
        made, given = self._names()[: len(self.outputs)], self._names()[len(self.outputs) :]
        allocate = [f"{o} = empty(shape_{o}, strides_{o}, dtype_{o})" for o in made]
        scope["empty"] = empty
        for o, shape, dtype in zip(made, outputs.shapes, outputs.dtypes, strict=True):
            scope |= {f"shape_{o}": tuple(shape), f"dtype_{o}": dtype}
            scope[f"strides_{o}"] = make_contiguous_strides_for(shape)
        text = f"""
def call({", ".join(given)}):
    {"; ".join(allocate)}
    {how}
    return {f"({', '.join(made)},)" if self._returns_tuple else "o0"}
"""
        exec(text, scope)
        call: Launch = scope["call"]
        return call

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

    def _words(self, outputs: Outputs, arguments: Sequence[Any], with_sizes: bool) -> Iterator[Word]:
        """What a kernel is passed, in order: its outputs and arguments, with or without the sizes of each tensor."""
        for position, (slot, shape) in enumerate(self._shapes_in_order(outputs, arguments)):
            argument = position - len(self.outputs)
            if argument < 0:
                yield Word(Source.OUTPUT, position)
            elif slot.tensor is not None:
                yield Word(Source.TENSOR, argument, max(self._alignment, arguments[argument].element_size()))
            else:
                yield Word(Source.FLOATING if slot.scalar == "Float64" else Source.INTEGER, argument)
            if shape is not None and with_sizes:
                yield from (Word(Source.CONSTANT, size) for size in slot.sizes_of(shape))

    def _shapes_in_order(self, outputs: Outputs, arguments: Sequence[Any]) -> list[tuple[Slot, torch.Size | None]]:
        """Each slot with its tensor's shape; None for a number."""
        given = [a.shape if s.tensor is not None else None for s, a in zip(self.arguments, arguments, strict=True)]
        return [*zip(self.outputs, outputs.shapes, strict=True), *zip(self.arguments, given, strict=True)]


@dataclass(frozen=True)
class _CpuPlan:
    outputs: Outputs
    words: tuple[Word, ...]
    sizes: tuple[int, ...]
    function: _CFunction
    launch: Launch  # in Python


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
        shaped = self._shapes_in_order(outputs, arguments)
        sizes = tuple(n for slot, shape in shaped if shape is not None for n in slot.sizes_of(shape))
        words = tuple(self._words(outputs, arguments, with_sizes=False))
        return _CpuPlan(outputs, words, sizes, function, self._written_out_for(outputs, sizes, function))

    def _written_out_for(self, outputs: Outputs, sizes: Sequence[int], function: _CFunction) -> Launch:
        words = ", ".join(
            f"{name}.data_ptr()" if slot.tensor is not None else name
            for name, slot in zip(self._names(), (*self.outputs, *self.arguments), strict=True)
        )
        scope = {
            "pack": self._pack, "sizes": struct.pack(f"={len(sizes)}q", *sizes), "run": function, "no_room": _NO_ROOM,
            "run_and_listen": functools.partial(self._run_and_listen, function),
        }  # fmt: skip
        how = f"run_and_listen(pack({words}), sizes)" if self._raises else f"run(pack({words}), sizes, None, no_room)"
        return self._written_out(outputs, _empty_strided_cpu, how, scope)

    def _run(self, plan: _CpuPlan, tensors: list[torch.Tensor], arguments: Sequence[Any]) -> Any:
        given = list(arguments)
        for position, tensor in zip(self._tensors, tensors, strict=True):
            given[position] = tensor
        return plan.launch(*given)

    def _launch_of(self, plan: _CpuPlan) -> Launch:
        return plan.launch

    def _runs(self, plan: _CpuPlan) -> Library:
        return Library(address_of(plan.function), plan.sizes, self._raise)

    def _run_and_listen(self, function: _CFunction, words: bytes, sizes: bytes) -> None:
        message = ctypes.create_string_buffer(_ROOM)
        if status := function(words, sizes, message, ctypes.c_int64(_ROOM)):
            self._raise(message.raw[: status - 1])

    def _raise(self, said: bytes) -> None:
        text = said.decode(errors="replace")
        raise LaunchError(f"{self.contract.qualname}: the Mojo kernel {self.name!r} raised: {text}")


@functools.cache
def _c_function(library: Path) -> _CFunction:
    """The entry of a library, loaded once for the process.

    It declares no types of arguments, which would cost ctypes 0.1 – 0.2 µs a call: bytes and None are
    pointers to it as they are, and the number comes as a ``c_int64``.
    """
    function = getattr(ctypes.CDLL(str(library)), ENTRY)
    function.restype = ctypes.c_int32
    typed: _CFunction = function
    return typed


@dataclass(frozen=True)
class _GpuPlan:
    function: DeviceFunction
    configuration: Configuration
    device: int
    outputs: Outputs
    words: tuple[Word, ...]


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
        dtypes = [*outputs.dtypes, *(arguments[i].dtype for i in self._tensors)]
        return _GpuPlan(
            function=_device_function(self.name, file, tuple(self._parameters(dtypes))),
            configuration=self._grid.of(self.name, arguments),
            device=first.get_device(),
            outputs=outputs,
            words=tuple(self._words(outputs, arguments, with_sizes=True)),
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
        made = zip(plan.outputs.shapes, plan.outputs.dtypes, strict=True)
        outputs = [torch.empty(shape, dtype=dtype, device=tensors[0].device) for shape, dtype in made]
        given = [*arguments]
        for position, tensor in zip(self._tensors, tensors, strict=True):
            given[position] = tensor
        words = [
            w.value if w.source is Source.CONSTANT else (outputs if w.source is Source.OUTPUT else given)[w.value]
            for w in plan.words
        ]
        plan.function.launch(plan.configuration, words, plan.device)
        return tuple(outputs) if self._returns_tuple else outputs[0]

    def _launch_of(self, plan: _GpuPlan) -> Launch:
        def launch_any(*words: Any) -> None:
            plan.function.launch(plan.configuration, words, plan.device)

        launch = plan.function.launcher(plan.configuration, plan.device, launch_any) or launch_any
        prefix = {Source.CONSTANT: "", Source.OUTPUT: "o"}
        words = [f"{prefix.get(word.source, 'a')}{word.value}" for word in plan.words]
        # It allocates on the current device, which that of a call's tensors is.
        return self._written_out(plan.outputs, _empty_strided_cuda, f"launch({', '.join(words)})", {"launch": launch})

    def _runs(self, plan: _GpuPlan) -> GpuKernel | None:
        return plan.function.prepared(plan.configuration, plan.device)


@functools.cache
def _device_function(name: str, file: Path, parameters: tuple[Parameter, ...]) -> DeviceFunction:
    """The kernel of a PTX file, with what PTX does not say of its parameters."""
    found = next(e for e in entries_in_ptx(file.read_text()) if e.symbol == ENTRY)
    if len(found.parameters) != len(parameters):  # the driver would read past what we pass
        raise LaunchError(f"{name}: {file} takes {len(found.parameters)} words, and {len(parameters)} are passed")
    entry = EntryPoint(ENTRY, name, parameters)
    return DeviceFunction(name, DeviceCode(file, "", (entry,), ptx=file), entry)
