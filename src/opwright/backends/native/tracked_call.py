"""Runs guarded calls that autograd tracks in one native function, whose outputs get a native node of autograd's graph.

``templates/tracked_call.cpp`` runs the kernel and makes the node; the gradients themselves are a Python function. It
needs torch's own C++ headers, so that building it takes 10 to 20 s, once for a torch and a Python. No call waits for
that: it is built in a thread after some tracked calls, and until then, as without a compiler, they take Python's way
(``torch.autograd.Function``).
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opwright.backends.build_tools import BuildTools
from opwright.backends.names_in_code import Watched
from opwright.backends.native.background import Background
from opwright.backends.native.extension import Extension, load_extension, load_for_python
from opwright.backends.native.tape import Tape

__all__ = ["TrackedCall", "TrackedCalls", "load_tracked_calls", "tracked_calls"]

_EXTENSION = Extension(
    "tracked_call",
    sources=("tracked_call.cpp", "graph_node.h", "tape.h", "python_objects.h", "extension.h", "python_tensor.h"),
    flags=("-O2", "-std=c++20", "-fPIC", "-shared", "-Wall"),
    libraries=("torch_cpu", "torch_python", "c10"),
)


@dataclass(frozen=True)
class TrackedCall:
    """What the tracked calls of one guard share.

    Attributes:
        name: that of the node.
        is_tensor: for each argument, whether it is a tensor.
        sources: the values that are saved: the position of an argument, or -1 - that of an output.
        outputs: how many outputs the kernel returns in a tuple; 0 for a tensor alone.
        visible: how many of them the caller gets, the first ones. The others have no gradient.
        run: the kernel, as a function of the arguments.
        again: takes an output of the kernel that is not new or has no gradient, and the arguments; tracks it in Python.
        needs: for each argument, whether its gradient is needed.
        gradients: takes the saved values, ``needs`` and the gradients of the visible outputs; returns a tuple of a
            gradient, or None, for each argument.
        refuse: raises the error for a gradient that autograd does not take: its position, it, and whether the argument
            is a tensor.
        tapes: recorded gradients, which may be added later: pairs of what ``TrackedCalls.tape_of`` makes, whose inputs
            are the saved tensors and the incoming gradients, and of the names that it depends on.
    """

    name: str
    is_tensor: tuple[bool, ...]
    sources: tuple[int, ...]
    outputs: int
    visible: int
    run: Callable[..., Any]
    again: Callable[..., Any]
    needs: tuple[bool, ...]
    gradients: Callable[..., tuple[Any, ...]]
    refuse: Callable[[int, Any, bool], None]
    tapes: list[tuple[Any, tuple[Watched, ...]]]


class TrackedCalls:
    """The loaded extension."""

    def __init__(self, library: Path, access: tuple[int, int | None]) -> None:
        loaded = load_extension(library, access)
        self._make = loaded.opwright_tracked_call
        self._make.restype = ctypes.py_object
        self._make.argtypes = [ctypes.c_char_p, ctypes.py_object]
        self._make_tape, self._run_tape = loaded.opwright_tape, loaded.opwright_run_tape
        for function in (self._make_tape, self._run_tape):
            function.restype = ctypes.py_object
        self._make_tape.argtypes = [ctypes.py_object] * 3
        self._run_tape.argtypes = [ctypes.py_object] * 2

    def function_for(self, call: TrackedCall) -> Callable[..., Any]:
        """The native function of a call's arguments."""
        held = (call.name, call.run, call.again, call.needs, call.gradients, call.refuse, call.tapes)
        made: Callable[..., Any] = self._make(array("q", _numbers(call)).tobytes(), held)
        return made

    def tape_of(self, tape: Tape, inputs: Sequence[torch.Tensor]) -> Any:
        """A native tape for inputs like these.

        Raises:
            RuntimeError, ValueError: an operation, or a value of one, is of a kind that it does not hold.
        """
        return self._make_tape(tape.described(), tuple(inputs), tape.calls)

    def run_tape(self, tape: Any, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...] | None:
        """The results of a native tape; None if it is not for such inputs in this thread now."""
        results: tuple[torch.Tensor | None, ...] | None = self._run_tape(tape, tuple(inputs))
        return results


def _numbers(call: TrackedCall) -> Iterator[int]:
    """The numbers of a description, in the order in which tracked_call.cpp reads them."""
    yield from (len(call.is_tensor), *call.is_tensor, len(call.sources), *call.sources, call.outputs, call.visible)


def load_tracked_calls(tools: BuildTools, build: bool = True) -> TrackedCalls | None:
    """The extension; None if it does not load, or is not in the cache and cannot or shall not be built."""
    without = "autograd tracks calls in Python, which costs a few microseconds more"
    return load_for_python(_EXTENSION, tools, TrackedCalls, without, build=build)


tracked_calls = Background(load_tracked_calls)
