"""Replays a pair of CUDA graphs in one native function, whose outputs get a native node of autograd's graph.

``templates/graph_step.cpp`` does what ``runtime/cuda_graphs/replay.py`` does in Python. The extension is built on
request (``on_request.py``), once for a torch and a Python.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from opwright.backends.build_tools import BuildTools
from opwright.backends.native.extension import Extension, load_extension, load_for_python
from opwright.backends.native.on_request import OnRequest

__all__ = ["GraphCopy", "GraphSteps", "NativeGraph", "NativeStep", "Refusal", "graph_steps", "load_graph_steps"]

_EXTENSION = Extension(
    "graph_step",
    sources=("graph_step.cpp", "graph_node.h", "python_objects.h", "extension.h", "python_tensor.h"),
    flags=("-O2", "-std=c++20", "-fPIC", "-shared", "-Wall"),
    libraries=("torch_cpu", "torch_python", "c10"),
)


class Refusal(enum.IntEnum):
    """Why a backward does not run; the numbers are those of graph_step.cpp."""

    SECOND_DERIVATIVE = 0
    FREED = 1
    OVERWRITTEN = 2
    SUBCLASS = 3


# A node of a graph that copies to one of its own tensors, that tensor's address and its size in bytes.
GraphCopy = tuple[int, int, int]


@dataclass(frozen=True)
class NativeGraph:
    """A captured graph.

    Attributes:
        launch: launches it.
        own: the tensors that a call's are copied to.
        executable: its handle; 0 if torch is to copy before each launch, in place of the graph's nodes.
        copies: for each of ``own`` the node that copies to it; None if it is empty.
        set_copy: the address of ``cudaGraphExecMemcpyNodeSetParams1D``, or 0 without an executable.
    """

    launch: Callable[[], object]
    own: tuple[Tensor, ...]
    executable: int = 0
    copies: tuple[GraphCopy | None, ...] = ()
    set_copy: int = 0

    def described(self) -> tuple[object, ...]:
        """In the order in which graph_step.cpp reads it."""
        return self.launch, self.own, self.executable, self.copies, self.set_copy


@dataclass(frozen=True)
class NativeStep:
    """The memory of one call and its graphs, while nobody uses it.

    Attributes:
        name: that of the node.
        refuse: raises the error for a backward that does not run: takes the ``Refusal``, and the tensor that is the
            reason, or None.
        forward, backward: the graphs; no backward: nothing is tracked.
        is_copied: for each tensor of a call, whether it is copied.
        outputs: what the forward writes.
        is_differentiable: for each of them, whether the backward takes its gradient.
        gradients: for each tensor of a call what the backward writes, or None.
        watched: tensors that the backward reads and that others may modify.
        lent: outputs and gradients whose holders tell whether the memory is in use.
    """

    name: str
    refuse: Callable[[int, Tensor | None], None]
    forward: NativeGraph
    backward: NativeGraph | None
    is_copied: tuple[bool, ...]
    outputs: tuple[Tensor, ...]
    is_differentiable: tuple[bool, ...]
    gradients: tuple[Tensor | None, ...]
    watched: tuple[Tensor, ...]
    lent: tuple[Tensor, ...]

    def described(self) -> tuple[object, ...]:
        """In the order in which graph_step.cpp reads it."""
        backward = None if self.backward is None else self.backward.described()
        graphs = (self.forward.described(), backward)
        outputs = (self.outputs, self.is_differentiable)
        return self.name, self.refuse, *graphs, self.is_copied, *outputs, self.gradients, self.watched, self.lent


class GraphSteps:
    """The loaded extension."""

    def __init__(self, library: Path, access: tuple[int, int | None]) -> None:
        self._make = load_extension(library, access).opwright_graph_step
        self._make.restype, self._make.argtypes = ctypes.py_object, [ctypes.py_object]

    def functions_for(self, step: NativeStep) -> tuple[Callable[..., Sequence[Tensor]], Callable[[], bool]]:
        """A function that replays a call with its tensors, and one that tells whether the step is free again."""
        made: tuple[Any, Any] = self._make(step.described())
        return made


def load_graph_steps(tools: BuildTools, build: bool = True) -> GraphSteps | None:
    """The extension; None if it does not load, or is not in the cache and cannot or shall not be built."""
    without = "CUDA graphs are replayed from Python, which costs some ten microseconds more"
    return load_for_python(_EXTENSION, tools, GraphSteps, without, build=build)


graph_steps: OnRequest[GraphSteps] = OnRequest(load_graph_steps)
