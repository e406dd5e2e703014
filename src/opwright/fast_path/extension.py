"""The native part of fast calls: ``templates/fast_calls.cpp``, loaded from the cache or built on request.

It has guards and the call slots of classes (``guarded_call.h``), repetitions of recorded launchers
(``recorded_call.h``), and nodes of autograd's graph with recorded gradients (``tracked_call.h``, ``operations.h``). It
needs torch's own C++ headers. Without it every call takes the plain way.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd import forward_ad

from opwright.backends.build_tools import BuildTools
from opwright.backends.native.extension import Extension, load_extension, load_for_python
from opwright.backends.native.on_request import OnRequest
from opwright.fast_path.operations import Operations
from opwright.internals.dispatch import can_detect_interceptors

__all__ = ["FastCalls", "GuardedCall", "TrackedCall", "fast_calls_extension", "take_calls_of"]

_EXTENSION = Extension(
    "fast_calls",
    sources=(
        "fast_calls.cpp", "guarded_call.h", "recorded_call.h", "tracked_call.h", "operations.h", "unchanged.h",
        "graph_node.h", "python_objects.h", "extension.h", "python_tensor.h",
    ),
    flags=("-O2", "-std=c++20", "-fPIC", "-shared", "-Wall"),
    libraries=("torch_cpu", "torch_python", "c10"),
    folder=Path(__file__).parent / "templates",
)  # fmt: skip
# A guard, and the function that runs if it holds.
GuardedCall = tuple[Any, Callable[..., Any]]
# What code of recorded calls uses: a holder, a name in it, and the value that it had (``known_code.py``).
Watched = tuple[Any, str, Any]
# Classes, each with the name of the attribute that keeps the guarded calls; empty: the object itself does.
_classes: list[tuple[type, str]] = []


@dataclass(frozen=True)
class TrackedCall:
    """What the tracked calls of one guard share.

    Attributes:
        name: that of the node.
        is_tensor: for each argument, whether it is a tensor.
        sources: the values that are saved: the position of an argument, or -1 - that of an output.
        outputs: how many outputs the kernel returns in a tuple; 0 for a tensor alone.
        visible: how many of them the caller gets, the first ones. The others have no gradient.
        materialize_grads: whether ``gradients`` gets zeros for an output that nothing depends on, in place of None.
        run: the kernel, as a function of the arguments.
        again: takes an output of the kernel that is not new or has no gradient, and the arguments; tracks it in Python.
        needs: for each argument, whether its gradient is needed.
        gradients: takes the saved values, ``needs`` and the gradients of the visible outputs; returns a tuple of a
            gradient, or None, for each argument.
        refuse: raises the error for a gradient that autograd does not take: its position, it, and whether the argument
            is a tensor.
        recordings: recorded gradients, which may be added later: what ``FastCalls.operations_of`` makes, whose inputs
            are the saved tensors and the incoming gradients; what must be unchanged; and the other saved values.
        watched: what must be unchanged for the sources to be these; else ``again`` tracks the call.
        is_same: compares the results of a recording with those of ``gradients``, in a run that is made both ways.
        drop: drops recordings after a difference; takes whether ``gradients`` returns the same each time.
    """

    name: str
    is_tensor: tuple[bool, ...]
    sources: tuple[int, ...]
    outputs: int
    visible: int
    materialize_grads: bool
    run: Callable[..., Any]
    again: Callable[..., Any]
    needs: tuple[bool, ...]
    gradients: Callable[..., tuple[Any, ...]]
    refuse: Callable[[int, Any, bool], None]
    recordings: list[tuple[Any, tuple[Watched, ...], tuple[Any, ...]]]
    watched: tuple[Watched, ...]
    is_same: Callable[[Sequence[Any], Sequence[Any]], bool]
    drop: Callable[[bool], None]


class FastCalls:
    """The loaded extension."""

    def __init__(self, library: Path, access: tuple[int, int | None]) -> None:
        loaded = load_extension(library, access)
        objects = ctypes.py_object

        def function(name: str, *arguments: Any, result: Any = objects) -> Any:
            found = getattr(loaded, f"opwright_{name}")
            found.argtypes, found.restype = arguments, result
            return found

        self._guard = function("guard", objects, ctypes.c_long, ctypes.c_long, objects)
        self.hits_of: Callable[[Any], int] = function("guard_hits", objects)
        self._find = function("find_guarded", objects, objects)
        self._run_guarded = function("run_guarded", objects, objects, objects)
        self.count_reason: Callable[[int], None] = function("count_reason", ctypes.c_int, result=None)
        self._verify = function("verify", ctypes.c_int64, ctypes.c_int64, result=None)
        self._take = function("take_calls", *[objects] * 4, result=ctypes.c_bool)
        self._tracked_call = function("tracked_call", ctypes.c_char_p, objects)
        self._operations, self._run_operations = function("tape", *[objects] * 3), function("run_tape", *[objects] * 2)
        self._recorded_call = function("recorded_call", *[objects] * 5)
        for cls, owner in _classes:
            self.take_calls_of(cls, owner)

    # -- guards -------------------------------------------------------------------------------------------------------

    def guard(self, items: tuple[tuple[Any, ...], ...], tracking: int, below_autograd: bool, name: str | None) -> Any:
        """A guard (``guards.py``).

        Raises:
            RuntimeError, ValueError: the dispatcher has no kernel for such a call, or the tensors have no sizes.
        """
        return self._guard(items, tracking, below_autograd, name)

    def find_guarded(self, owner: Any, arguments: tuple[Any, ...]) -> GuardedCall | None:
        """The guarded call of an owner that complete arguments take, whatever intercepts calls now."""
        found: GuardedCall | None = self._find(owner, arguments)
        return found

    def run_guarded(self, owner: Any, guarded: GuardedCall, arguments: tuple[Any, ...]) -> Any:
        """Run what ``find_guarded`` has found."""
        return self._run_guarded(owner, guarded, arguments)

    def take_calls_of(self, cls: type, owner: str) -> None:
        """As the function ``take_calls_of``."""
        self._take(cls, cls.__call__, owner or None, vars(forward_ad))

    # -- recordings --------------------------------------------------------------------------------------------------

    def verify(self, *, first: int = 2, of: int = 4096) -> None:
        """Which repetitions are made both ways and compared: the first ones of each recording, and one of so many."""
        self._verify(first, of)

    # -- recorded launchers -------------------------------------------------------------------------------------------

    def recorded_call(
        self,
        watched: tuple[Watched, ...],
        numbers: tuple[tuple[int, Any], ...],
        repeat: Callable[..., Any],
        launch: Callable[..., Any],
        verify: Callable[..., Any],
    ) -> Callable[..., Any]:
        """``repeat`` while what is watched is unchanged and arguments are the numbers; else ``launch``. Some calls are
        made by ``verify``."""
        made: Callable[..., Any] = self._recorded_call(watched, numbers, repeat, launch, verify)
        return made

    # -- calls that autograd tracks ----------------------------------------------------------------------------------

    def tracked_call(self, call: TrackedCall) -> Callable[..., Any]:
        """The native function of a call's arguments."""
        held = (
            call.name, call.run, call.again, call.needs, call.gradients, call.refuse, call.recordings, call.watched,
            call.is_same, call.drop,
        )  # fmt: skip
        made: Callable[..., Any] = self._tracked_call(array("q", _numbers(call)).tobytes(), held)
        return made

    def operations_of(self, operations: Operations, inputs: Sequence[torch.Tensor]) -> Any:
        """Native operations for inputs like these.

        Raises:
            RuntimeError, ValueError: an operation, or a value of one, is of a kind that it does not hold.
        """
        return self._operations(operations.described(), tuple(inputs), operations.calls)

    def run_operations(self, operations: Any, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...] | None:
        """Their results; None if they are not for such inputs in this thread now."""
        results: tuple[torch.Tensor | None, ...] | None = self._run_operations(operations, tuple(inputs))
        return results


def _numbers(call: TrackedCall) -> Iterator[int]:
    """The numbers of a description, in the order in which tracked_call.h reads them."""
    yield from (len(call.is_tensor), *call.is_tensor, len(call.sources), *call.sources)
    yield from (call.outputs, call.visible, call.materialize_grads)


def take_calls_of(cls: type, owner: str = "") -> None:
    """Once the extension is loaded, take the calls of a class whose objects keep ``_guarded_calls`` for calls of
    ``_arity`` arguments, of which the last ones may be left to their defaults (``_tails``), and ints for floats are
    converted (``_floats``).

    Args:
        owner: the attribute of objects of the class that has these; empty for the object itself.
    """
    _classes.append((cls, owner))
    if fast_calls_extension.loaded is not None:
        fast_calls_extension.loaded.take_calls_of(cls, owner)


def _load(tools: BuildTools, build: bool) -> FastCalls | None:
    if not can_detect_interceptors:
        return None
    without = "calls of operators go through torch's dispatcher"
    return load_for_python(_EXTENSION, tools, FastCalls, without, build=build)


fast_calls_extension: OnRequest[FastCalls] = OnRequest(
    _load,
    hint="calls of operators go through torch's dispatcher, which costs some 10 µs each; `opwright doctor --build` "
    "compiles the extension of fast calls once (`opwright doctor` says what is missing)",
)
