"""The steps of one call of a kernel: functions that its code calls in Python and in C, and torch's operations.

They are the same each time for a kernel that computes, so that a step that a later call skips has been kept.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from opwright import tree
from opwright.checks.conduct.user_code import LIBRARY, OPWRIGHT, USER, owner_of
from opwright.checks.context import Context
from opwright.internals.compiler import DispatchMode

__all__ = ["Steps", "steps_and_results", "steps_of", "uncounted"]

# Methods that return a tensor's values without an operation of torch.
_RETURN_VALUES = frozenset({"numpy", "tolist"})
# Operations that return what a tensor is, not what it has.
_DESCRIBE = frozenset({"_has_compatible_shallow_copy_type", "is_pinned", "is_same_size"})
# Triton's functions that start a kernel. opwright's own are all that a user's code calls, except these:
_LAUNCHES = frozenset({"JITFunction.run", "Autotuner.run", "Heuristics.run"})
_OF_MODES = ("__torch_function__", "__torch_dispatch__")
_TENSOR_MAPS = "tensor_map.py"
_OF_EXTENSIONS = ("PyCapsule", "pybind11")


@dataclass
class Steps:
    """The steps of one call, by their names.

    Attributes:
        counts: how often each is taken.
        reads: those that may read values of arguments, as they do more than describe or allocate memory.
        of_user: functions of the user's.
    """

    counts: Counter[str] = field(default_factory=Counter)
    reads: set[str] = field(default_factory=set)
    of_user: set[str] = field(default_factory=set)

    def add(self, name: str, *, reads: bool, is_users: bool = False) -> None:
        if _uncounted:
            return
        self.counts[name] += 1
        if reads:
            self.reads.add(name)
        if is_users:
            self.of_user.add(name)


def steps_of(context: Context, arguments: Sequence[Any]) -> Steps:
    """The steps of one call of the kernel."""
    return steps_and_results(context, arguments)[0]


def steps_and_results(context: Context, arguments: Sequence[Any]) -> tuple[Steps, tuple[Any, ...]]:
    """The steps of one call of the kernel, and what it returns."""
    steps, results = Steps(), list[tuple[Any, ...]]()
    collects = gc.isenabled()
    gc.disable()  # the kernel does not call what a collection calls
    try:
        with _Operations(steps, arguments):
            _profiled(steps, lambda: results.append(context.run_kernel(arguments)))
    finally:
        if collects:
            gc.enable()
    return steps, results[0]


_uncounted: list[None] = []


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """A block whose steps are not a kernel's, such as those of giving parameters to a published module."""
    _uncounted.append(None)
    try:
        yield
    finally:
        _uncounted.pop()


def _profiled(steps: Steps, call: Callable[[], Any]) -> None:
    # For each frame within the call, who has called it last: the user or opwright, whose own steps do not count.
    callers, of_code = [OPWRIGHT], dict[CodeType, _Function]()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            function = of_code.get(frame.f_code) or of_code.setdefault(frame.f_code, _function(frame.f_code))
            if USER in (function.owner, callers[-1]):
                steps.add(function.name, reads=function.reads, is_users=function.is_users)
            callers.append(callers[-1] if function.owner is LIBRARY else function.owner)
        elif event == "return":
            if len(callers) > 1:
                callers.pop()
        elif event == "c_call" and callers[-1] is USER:
            name, reads = _builtin(argument)
            steps.add(name, reads=reads)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)


class _Function(NamedTuple):
    """A function in Python."""

    owner: str
    name: str
    reads: bool
    is_users: bool


def _function(code: CodeType) -> _Function:
    owner, file = owner_of(code.co_filename), Path(code.co_filename).name
    if owner is OPWRIGHT:
        starts = code.co_name not in _OF_MODES and file != _TENSOR_MAPS
    else:
        starts = code.co_qualname in _LAUNCHES
    name = "a launch" if starts else f"{code.co_qualname} ({file}:{code.co_firstlineno})"
    return _Function(owner, name, starts, is_users=owner is USER and not file.startswith("<"))


def _builtin(function: Any) -> tuple[str, bool]:
    """The name of a function in C, and whether it may read values."""
    of, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(of, torch.Tensor):
        return f"Tensor.{name}", name in _RETURN_VALUES
    kind = type(of).__name__
    return f"{kind}.{name}", kind.startswith(_OF_EXTENSIONS)


class _Operations(DispatchMode):  # type: ignore[misc]  # found at run time
    """Adds torch's operations to the steps, also those that C++ calls."""

    def __init__(self, steps: Steps, arguments: Sequence[Any]) -> None:
        super().__init__()
        self._steps = steps
        # With values of the arguments. All are held, so that no other memory has their addresses.
        self._with_values = {t.untyped_storage().data_ptr(): t for t in tree.tensors(list(arguments))}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = str(function)
        self._steps.add(name, reads=self._reads(name.split(".")[1], args, result))
        return result

    def _reads(self, name: str, arguments: tuple[Any, ...], result: Any) -> bool:
        """Whether an operation may read values of arguments: it has one, and does more than view it."""
        passed = {t.untyped_storage().data_ptr() for t in tree.tensors(list(arguments))}
        if name in _DESCRIBE or not passed & self._with_values.keys():
            return False
        returned = {t.untyped_storage().data_ptr(): t for t in tree.tensors([result])}
        is_view = bool(returned) and returned.keys() <= passed and not name.endswith("_")
        if not is_view:
            self._with_values |= returned
        return not is_view
