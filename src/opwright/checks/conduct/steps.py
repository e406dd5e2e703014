"""The steps of one call of a kernel: functions that its code calls in Python and in C, and torch's operations.

They are the same each time for a kernel that computes, so that a step that a later call skips has been kept.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from opwright import tree
from opwright.checks.conduct.user_code import LIBRARY, OPWRIGHT, USER, owner_of
from opwright.checks.context import Context
from opwright.internals.compiler import DispatchMode

__all__ = ["Step", "steps_and_results", "steps_of", "uncounted"]

# Methods that return a tensor's values, and are no operation of torch.
_RETURN_VALUES = frozenset({"numpy", "tolist"})
# Operations that return what a tensor is, not what it has.
_DESCRIBE = frozenset({"_has_compatible_shallow_copy_type", "is_pinned", "is_same_size"})
# Triton's functions that start a kernel. opwright's own are all that a user's code calls, except these:
_LAUNCHES = frozenset({"JITFunction.run", "Autotuner.run", "Heuristics.run"})
_OF_MODES = ("__torch_function__", "__torch_dispatch__")
_TENSOR_MAPS = "tensor_map.py"


class Step(NamedTuple):
    """A function or an operation.

    Attributes:
        name: in Python, with its line.
        reads: whether it may read values of arguments, as it does more than describe or allocate memory.
        is_users: whether it is a function of the user's.
    """

    name: str
    reads: bool
    is_users: bool = False


def steps_of(context: Context, arguments: Sequence[Any]) -> Counter[Step]:
    """How often one call of the kernel takes each step."""
    return steps_and_results(context, arguments)[0]


def steps_and_results(context: Context, arguments: Sequence[Any]) -> tuple[Counter[Step], tuple[Any, ...]]:
    """How often one call of the kernel takes each step, and what it returns."""
    counting, results = _Counting(_storages(tuple(arguments))), list[tuple[Any, ...]]()
    collects = gc.isenabled()
    gc.disable()  # what a collection calls is no step of the kernel
    try:
        with counting:
            _profiled(counting.steps, lambda: results.append(context.run_kernel(arguments)))
    finally:
        if collects:
            gc.enable()
    return counting.steps, results[0]


_uncounted: list[None] = []


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """A block whose steps are not a kernel's, such as those of giving parameters to a published module."""
    _uncounted.append(None)
    try:
        yield
    finally:
        _uncounted.pop()


def _profiled(steps: Counter[Step], call: Callable[[], Any]) -> None:
    # For each frame within the call, who has called it last: the user or opwright, whose own steps do not count.
    callers, of_code = [OPWRIGHT], dict[CodeType, tuple[str, Step]]()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            owner, step = of_code.get(frame.f_code) or of_code.setdefault(frame.f_code, _of_code(frame.f_code))
            if USER in (owner, callers[-1]) and not _uncounted:
                steps[step] += 1
            callers.append(callers[-1] if owner is LIBRARY else owner)
        elif event == "return":
            if len(callers) > 1:
                callers.pop()
        elif event == "c_call" and callers[-1] is USER and not _uncounted:
            steps[_of_builtin(argument)] += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)


def _of_code(code: CodeType) -> tuple[str, Step]:
    owner, file = owner_of(code.co_filename), Path(code.co_filename).name
    if owner is OPWRIGHT:
        starts = code.co_name not in _OF_MODES and file != _TENSOR_MAPS
    else:
        starts = code.co_qualname in _LAUNCHES
    is_users = owner is USER and not file.startswith("<")
    name = "a launch" if starts else f"{code.co_qualname} ({file}:{code.co_firstlineno})"
    return owner, Step(name, starts, is_users)


def _of_builtin(function: Any) -> Step:
    of, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(of, torch.Tensor):
        return Step(f"Tensor.{name}", name in _RETURN_VALUES)
    kind = type(of).__name__
    is_of_extension = kind.startswith(("PyCapsule", "pybind11"))
    return Step(f"{kind}.{name}", is_of_extension)


class _Counting(DispatchMode):  # type: ignore[misc]  # found at run time
    """Counts torch's operations, also those that C++ calls.

    Args:
        storages: the addresses of memory with values of the arguments. What operations make of these is added.
    """

    def __init__(self, storages: set[int]) -> None:
        super().__init__()
        self.steps, self._storages = Counter[Step](), storages

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if not _uncounted:
            self.steps[Step(str(function), self._reads(str(function).split(".")[1], args, result))] += 1
        return result

    def _reads(self, name: str, arguments: tuple[Any, ...], result: Any) -> bool:
        """Whether an operation may read values of arguments: it has one, and does more than view it."""
        passed = _storages(arguments)
        if not passed & self._storages or name in _DESCRIBE:
            return False
        returned = _storages(result)
        is_view = bool(returned) and returned <= passed and not name.endswith("_")
        if not is_view:
            self._storages |= returned
        return not is_view


def _storages(values: Any) -> set[int]:
    """The addresses of the memory of tensors."""
    return {
        t.untyped_storage().data_ptr() for t in tree.tensors(list(values) if isinstance(values, tuple) else [values])
    }
