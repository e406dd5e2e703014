"""Records what a launcher in Python does in one call, so that later calls like it are one native function.

A launcher that allocates its outputs, takes views and launches kernels does the same in every call with the same sizes,
strides, dtypes and numbers; only addresses differ. So one call is watched: torch's operations by a function mode,
launches by ``Recorder.launched``. If nothing else happened, ``NativeCall`` describes it, and the next call allocates
and launches without Python.

Whatever else a launcher may depend on is noticed, and then it runs in Python as before: names that are neither
metadata of tensors nor constants (``unrecordable``), operations that compute or copy, values that are read. Constants
of its module, and the kernels that it names, are compared in each call, as someone may rebind them.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from opwright.backends.base import Launch
from opwright.backends.build_tools import build_tools
from opwright.backends.gpu.launcher_names import unrecordable, watched_names
from opwright.backends.names_in_code import Watched, is_as_it_was
from opwright.backends.native.native_call import (
    ArgumentSource,
    GpuKernel,
    KernelArgument,
    NativeCall,
    NativeCalls,
    Output,
    native_calls,
)

__all__ = ["Recorder", "recordable", "recorder_of_this_thread", "recording_is_off"]

# The calls after which a launcher that did something else, such as measuring configurations, is given up.
_ATTEMPTS = 3
_ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
# Those whose dtype is torch's default one, unless it is given.
_OF_A_SETTING = frozenset({"empty", "empty_strided"})
# Attributes and methods of tensors that read no values; `__get__` is an attribute.
_METADATA = frozenset(
    {
        "shape", "dtype", "device", "ndim", "is_cuda", "layout", "itemsize", "nbytes", "requires_grad", "size",
        "stride", "numel", "nelement", "dim", "is_contiguous", "element_size", "get_device", "is_floating_point",
        "is_complex", "storage_offset", "__len__",
    }
)  # fmt: skip
# Those that may return a view of the tensor, or the tensor itself.
_VIEWS = frozenset(
    {
        "view", "view_as", "reshape", "flatten", "unflatten", "ravel", "t", "T", "mT", "transpose", "permute",
        "movedim", "unsqueeze", "squeeze", "select", "narrow", "expand", "as_strided", "detach", "contiguous",
        "__getitem__",
    }
)  # fmt: skip

_recorder: contextvars.ContextVar[Recorder | None] = contextvars.ContextVar("opwright_recorder", default=None)
recorder_of_this_thread = _recorder.get


def recording_is_off() -> bool:
    """Whether ``OPWRIGHT_RECORDING=0`` is set: launchers then run in Python in every call."""
    return os.environ.get("OPWRIGHT_RECORDING") == "0"


@dataclass(frozen=True)
class _Place:
    """Where a tensor's memory is: that of an argument or of an allocation, by position, and the bytes into it."""

    source: ArgumentSource
    position: int
    offset: int = 0


class Recorder(TorchFunctionMode):
    """One watched call.

    Attributes:
        problem: why the call cannot be repeated; empty if it can.
    """

    def __init__(self, arguments: Sequence[Any]) -> None:
        super().__init__()
        self.problem = ""
        self._is_paused = False
        self._arguments = arguments
        self._device = next(a.device for a in arguments if isinstance(a, torch.Tensor))
        # Held, so that no other tensor has the id of one of them.
        self._tensors: list[torch.Tensor] = []
        self._places: dict[int, _Place] = {}
        self._outputs: list[torch.Tensor] = []
        self._launches: list[tuple[GpuKernel, list[KernelArgument]]] = []
        for position, argument in enumerate(arguments):
            if isinstance(argument, torch.Tensor):
                self._keep(argument, _Place(ArgumentSource.TENSOR, position))

    # -- while it runs ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """A block in which this thread's operations and launches are recorded."""
        token = _recorder.set(self)
        try:
            with self:
                yield
        finally:
            _recorder.reset(token)

    @contextlib.contextmanager
    def launching(self) -> Iterator[None]:
        """A block in which the machinery of a launch reads tensors, such as their addresses."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._is_paused:
            return result
        name = getattr(func, "__name__", repr(func))
        if name == "__get__":
            name = getattr(func.__self__, "__name__", name)
        if name in _OF_A_SETTING and "dtype" not in (kwargs or {}):
            self.problem = self.problem or f"{name} takes its dtype from a setting"
        elif name in _ALLOCATIONS and isinstance(result, torch.Tensor):
            self._allocated(result)
        elif name not in _METADATA and not (name in _VIEWS and self._is_view(result)):
            self.problem = self.problem or f"it calls {name}"
        return result

    def launched(self, kernel: GpuKernel | None, arguments: Sequence[KernelArgument | torch.Tensor]) -> None:
        """A kernel was launched: with numbers as constants, and tensors whose memory the call knows.

        Args:
            kernel: None if the driver's handle is not known.
        """
        found = [self._argument(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        known = [argument for argument in found if argument is not None]
        if kernel is None or len(known) < len(found):
            self.problem = self.problem or "a kernel gets what is neither an argument nor an allocation of the call"
        else:
            self._launches.append((kernel, known))

    def aligned(self, tensor: torch.Tensor, alignment: int) -> KernelArgument | torch.Tensor:
        """The argument for a tensor whose address has to be a multiple of ``alignment`` bytes."""
        argument = self._argument(tensor)
        return tensor if argument is None else replace(argument, alignment=alignment)

    def _argument(self, tensor: torch.Tensor) -> KernelArgument | None:
        place = self._places.get(id(tensor))
        return None if place is None else KernelArgument(place.source, place.position, offset=place.offset)

    def _keep(self, tensor: torch.Tensor, place: _Place) -> None:
        self._tensors.append(tensor)
        self._places[id(tensor)] = place

    def _allocated(self, tensor: torch.Tensor) -> None:
        here = tensor.device == self._device and tensor.layout is torch.strided
        if not (here and tensor.is_contiguous() and type(tensor) is torch.Tensor and not tensor.requires_grad):
            self.problem = self.problem or "it allocates what is no plain contiguous tensor on the device"
            return
        self._keep(tensor, _Place(ArgumentSource.OUTPUT, len(self._outputs)))
        self._outputs.append(tensor)

    def _is_view(self, result: Any) -> bool:
        """Whether the result shares the memory of a tensor that the call knows; it is known then, too."""
        if not isinstance(result, torch.Tensor):
            return False
        if id(result) in self._places:
            return True
        for base in self._tensors:
            if result.untyped_storage().data_ptr() == base.untyped_storage().data_ptr():
                place = self._places[id(base)]
                self._keep(result, replace(place, offset=place.offset + result.data_ptr() - base.data_ptr()))
                return True
        return False

    # -- afterwards -------------------------------------------------------------------------------------------------

    def description(self, result: Any, fallback: Launch) -> NativeCall | None:
        """The watched call, which returned ``result``; None, and ``problem`` says why, if it cannot be repeated."""
        returned = [] if result is None else [*result] if isinstance(result, tuple | list) else [result]
        positions = [next((i for i, o in enumerate(self._outputs) if o is r), -1) for r in returned]
        if -1 in positions or len(set(positions)) < len(positions):
            self.problem = self.problem or "it returns what it has not allocated"
        if self.problem:
            return None
        order = [*positions, *(i for i in range(len(self._outputs)) if i not in positions)]
        renumbered = {old: new for new, old in enumerate(order)}
        arguments = [
            replace(a, value=renumbered[a.value]) if a.source is ArgumentSource.OUTPUT else a
            for _, passed in self._launches
            for a in passed
        ]
        return NativeCall(
            argument_count=len(self._arguments),
            outputs=tuple(Output(tuple(self._outputs[i].shape), self._outputs[i].dtype) for i in order),
            returns_tuple=isinstance(result, tuple | list),
            kernel_arguments=tuple(arguments),
            device=self._device,
            runs=tuple(replace(kernel, parameters=len(passed)) for kernel, passed in self._launches),
            fallback=fallback,
            returned=len(positions),
        )


Observing = Callable[[], contextlib.AbstractContextManager[None]]


def recordable(launch: Launch, observing: Observing = contextlib.nullcontext) -> Launch:
    """A launcher in Python that is recorded for calls like an earlier one; the launcher itself if it may depend on
    more than its arguments.

    Args:
        observing: a block in which launches reach the recorder of this thread, if the language needs one.
    """
    return launch if unrecordable(launch) is not None else _Recordable(launch, observing)


class _Recordable:
    """A launcher whose calls may be repeated without Python."""

    def __init__(self, launch: Launch, observing: Observing) -> None:
        self._launch, self._observing = launch, observing
        self.__wrapped__ = launch

    def __call__(self, *arguments: Any) -> Any:
        return self._launch(*arguments)

    def for_calls_like(self, arguments: Sequence[Any]) -> Launch:
        """See ``base.launch_for_calls_like``."""
        on_gpu = all(a.is_cuda for a in arguments if isinstance(a, torch.Tensor))
        if not on_gpu or recording_is_off() or any(isinstance(a, list | tuple) for a in arguments):
            return self._launch
        native = native_calls(build_tools())
        return self._launch if native is None else _Recording(self._launch, self._observing, native)


class _Recording:
    """The calls of one guard: the first one is watched, later ones are repeated."""

    def __init__(self, launch: Launch, observing: Observing, native: NativeCalls) -> None:
        self._launch, self._observing, self._native = launch, observing, native
        self._attempts = 0
        self._run: Launch = self._record

    def __call__(self, *arguments: Any) -> Any:
        return self._run(*arguments)

    def _record(self, *arguments: Any) -> Any:
        self._attempts += 1
        if self._attempts == _ATTEMPTS:
            self._run = self._launch
        recorder = Recorder(arguments)
        names = watched_names(self._launch)
        with self._observing(), recorder.watching():
            result = self._launch(*arguments)
        description = recorder.description(result, self._launch)
        with contextlib.suppress(AttributeError):  # a dtype that torch's C interface does not have
            made = None if description is None else self._native.function_for(description)
            if made is not None:
                self._run = _unless_rebound(made, self._launch, names)
        return result


def _unless_rebound(repeat: Launch, launch: Launch, names: Sequence[Watched]) -> Launch:
    """The repeated call, while every name of the launcher has the value that it had."""

    def run(*arguments: Any) -> Any:
        for name in names:
            if not is_as_it_was(name):
                return launch(*arguments)
        return repeat(*arguments)

    return run
