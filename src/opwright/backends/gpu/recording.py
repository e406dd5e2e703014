"""Watches one call of a launcher in Python: what it allocates, which views it takes, which kernels it launches.

A launcher that does nothing else does the same in every call with the same sizes, strides, dtypes and numbers; only
addresses differ. torch's operations are seen by a function mode, launches by ``Recorder.launched``. Each tensor that a
kernel gets is traced to the argument or allocation that it is a view of, by the operation that made the view. What is
not listed here as known makes the call one that cannot be repeated. ``fast_path/recorded_launch.py`` repeats calls.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode

from opwright.backends.base import Launch
from opwright.backends.native.native_call import ArgumentSource, GpuKernel, KernelArgument, NativeCall, Output

__all__ = [
    "METADATA", "VIEWS", "LookedAtError", "PassedOn", "RecordableLauncher", "Recorder", "plain_number",
    "recorder_of_this_thread",
]  # fmt: skip

# Attributes and methods of tensors that read no values, and that follow from sizes, strides, dtype and device.
METADATA = (
    "shape", "dtype", "device", "ndim", "is_cuda", "layout", "itemsize", "nbytes", "requires_grad", "size", "stride",
    "numel", "nelement", "dim", "is_contiguous", "element_size", "get_device", "is_floating_point", "is_complex",
    "__len__",
)  # fmt: skip
# Those that may return a view of the tensor, or the tensor itself; its place in the memory of the tensor follows from
# sizes and strides, which is not so for as_strided.
VIEWS = (
    "view", "view_as", "reshape", "flatten", "unflatten", "ravel", "t", "T", "mT", "transpose", "permute", "movedim",
    "unsqueeze", "squeeze", "select", "narrow", "expand", "chunk", "split", "unbind", "detach", "contiguous",
    "__getitem__",
)  # fmt: skip


def _functions(names: Iterable[str]) -> dict[int, Any]:
    """Methods and attributes of torch.Tensor as a function mode gets them: by identity, not by name."""
    found = [getattr(torch.Tensor, name) for name in names]
    return {id(function): function for function in found}


_METADATA, _VIEWS = _functions(METADATA), _functions(VIEWS)
# Those whose dtype is torch's default one, unless it is given.
_OF_A_SETTING = {id(f): f for f in (torch.empty, torch.empty_strided)}
_ALLOCATIONS = {
    id(f): f for f in (torch.empty_like, torch.Tensor.new_empty, torch.Tensor.new_empty_strided)
} | _OF_A_SETTING

_recorder: contextvars.ContextVar[Recorder | None] = contextvars.ContextVar("opwright_recorder", default=None)
recorder_of_this_thread = _recorder.get


# -- numbers that a launcher passes on -------------------------------------------------------------------------------


class LookedAtError(Exception):
    """A launcher did something else with a number than to pass it on."""


class PassedOn:
    """Stands for a number argument in a watched call. It can be passed on, and answers nothing else, so that a launcher
    that gets as far as a kernel with it does the same for every number."""

    __slots__ = ("_position", "_value")

    def __init__(self, value: Any, position: int) -> None:
        object.__setattr__(self, "_value", value)
        object.__setattr__(self, "_position", position)

    def __getattribute__(self, name: str) -> Any:
        if hasattr(float, name) or hasattr(int, name):
            raise LookedAtError
        raise AttributeError(name)

    def _refuse(self, *_: Any) -> Any:
        raise LookedAtError

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse
    __repr__ = __str__ = __format__ = __int__ = __float__ = __index__ = __reduce__ = _refuse


def plain_number(value: Any) -> Any:
    """The number that is passed on; any other value as it is."""
    return object.__getattribute__(value, "_value") if type(value) is PassedOn else value


def _position_of(value: PassedOn) -> int:
    position: int = object.__getattribute__(value, "_position")
    return position


# -- a watched call --------------------------------------------------------------------------------------------------


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
        plain = [plain_number(argument) for argument in arguments]
        tensors = [a for a in plain if isinstance(a, torch.Tensor)]
        self._device = tensors[0].device
        storages = [t.untyped_storage().data_ptr() for t in {id(t): t for t in tensors}.values()]
        if 0 in storages or len(set(storages)) < len(storages):
            self.problem = "arguments are empty, or share memory"
        # Held, so that no other tensor has the id of one of them.
        self._tensors: list[torch.Tensor] = []
        self._places: dict[int, _Place] = {}
        self._outputs: list[torch.Tensor] = []
        self._launches: list[tuple[GpuKernel, list[KernelArgument]]] = []
        for position, argument in enumerate(plain):
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
        if self._is_paused or self.problem:
            return result
        # The getter of a property is a new object each time, of the property.
        owner = getattr(func, "__self__", None) if getattr(func, "__name__", "") == "__get__" else None
        known = func if owner is None else owner
        if _ALLOCATIONS.get(id(known)) is known:
            if id(known) in _OF_A_SETTING and "dtype" not in (kwargs or {}):
                self.problem = f"{_name(func)} takes its dtype from a setting"
            else:
                self._allocated(result)
        elif _METADATA.get(id(known)) is not known and not (
            _VIEWS.get(id(known)) is known and self._are_views(result, args)
        ):
            self.problem = f"it calls {_name(func)}"
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

    def number(self, value: PassedOn, like: KernelArgument | None) -> KernelArgument:
        """The argument for a number that the launcher passes on.

        Args:
            like: says of what kind the kernel's parameter is; None if that is not known.
        """
        kinds = (ArgumentSource.INTEGER, ArgumentSource.FLOATING, ArgumentSource.FLOATING32)
        if like is None or like.source not in kinds:
            raise LookedAtError
        return replace(like, value=_position_of(value))

    def _argument(self, tensor: torch.Tensor) -> KernelArgument | None:
        place = self._places.get(id(tensor))
        return None if place is None else KernelArgument(place.source, place.position, offset=place.offset)

    def _keep(self, tensor: torch.Tensor, place: _Place) -> None:
        self._tensors.append(tensor)
        self._places[id(tensor)] = place

    def _allocated(self, tensor: Any) -> None:
        is_plain = type(tensor) is torch.Tensor and not tensor.requires_grad
        if not (is_plain and tensor.device == self._device and tensor.layout is torch.strided and _is_dense(tensor)):
            self.problem = "an allocation must be a plain contiguous tensor on the device"
            return
        self._keep(tensor, _Place(ArgumentSource.OUTPUT, len(self._outputs)))
        self._outputs.append(tensor)

    def _are_views(self, result: Any, args: Sequence[Any]) -> bool:
        """Whether the results of an operation share the memory of the tensor that it is a method of, which the call
        knows; they are known then, too."""
        base = args[0] if args else None
        place = self._places.get(id(base))
        if place is None or not isinstance(base, torch.Tensor):
            return False
        results = result if isinstance(result, tuple | list) else [result]
        for each in results:
            if each is base:
                continue
            if type(each) is not torch.Tensor or not _shares_memory(each, base):
                return False
            offset = place.offset + each.data_ptr() - base.data_ptr() if each.numel() else place.offset
            self._keep(each, replace(place, offset=offset))
        return True

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


def _name(function: Any) -> str:
    name = getattr(function, "__name__", repr(function))
    return str(getattr(function.__self__, "__name__", name)) if name == "__get__" else str(name)


def _is_dense(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_contiguous() and tensor.storage_offset() == 0)


def _shares_memory(view: torch.Tensor, base: torch.Tensor) -> bool:
    address = base.untyped_storage().data_ptr()
    return address != 0 and view.untyped_storage().data_ptr() == address


def _nothing_else(value: Any) -> Iterable[tuple[Any, str, Any]] | None:
    return None


@dataclass(frozen=True, eq=False)
class RecordableLauncher:
    """A launcher in Python, and what a recorder of its calls has to know of its language.

    Attributes:
        launch: the launcher.
        written_by_user: the function whose code decides what a call does, if ``launch`` is a function around it.
        observing: a block in which launches reach the recorder of this thread.
        kernels: for a value that the code names: if it is a kernel, what else its launches depend on: tuples of a
            holder, a name in it, and its value (``fast_path/known_code.py``); None if it is none.
        passed_on: types of numbers that a recorder can follow to a kernel.
        writes: whether it writes arguments: then no call is made twice.
    """

    for_any_size: ClassVar[bool] = False

    launch: Launch
    written_by_user: Callable[..., Any] | None = None
    observing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    kernels: Callable[[Any], Iterable[tuple[Any, str, Any]] | None] = _nothing_else
    passed_on: tuple[type, ...] = ()
    writes: bool = False

    def __call__(self, *arguments: Any) -> Any:
        return self.launch(*arguments)

    @property
    def __wrapped__(self) -> Launch:
        return self.launch
