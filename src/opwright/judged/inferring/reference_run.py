"""Runs of a task's reference: on tensors without memory, with other constants or sizes, and on small real ones.

A reference that reads values, such as the lengths of sequences, does not run on tensors without memory.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from opwright import tree
from opwright.contract.definition.randomness import RandomOperations
from opwright.internals.compiler import DispatchMode, fake_tensors
from opwright.internals.tensors import version_of
from opwright.judged.calling.parameters import first_of, state_of
from opwright.judged.sources import Source
from opwright.judged.task import Task

__all__ = ["Axis", "Reference", "Run"]

Sizes = tuple[int, ...]
# An axis of an argument: the argument's position, and the axis.
Axis = tuple[int, int]


@dataclass(frozen=True)
class Run:
    """One run of the reference: what it got and returned, and the sizes of the operands of its pointwise operations."""

    inputs: tuple[Any, ...]
    state: Mapping[str, torch.Tensor]
    outputs: tuple[torch.Tensor, ...]
    updated: tuple[str, ...]
    draws: str
    returns_tuple: bool
    function: Callable[..., Any]
    pointwise: tuple[tuple[str, tuple[Sizes, ...]], ...] = ()

    def broadcasts_more_than(self, other: Run) -> bool:
        """Whether the same operations stretch an axis of one element, where the other run has equal sizes.

        That is an accident of small sizes: the halves of three elements are two and one, which no task means.
        """
        if [name for name, _ in self.pointwise] != [name for name, _ in other.pointwise]:
            return False
        return any(map(_stretches, (s for _, s in self.pointwise), (s for _, s in other.pointwise)))

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (*(t for t in self.inputs if isinstance(t, torch.Tensor)), *self.state.values())

    @property
    def shapes(self) -> tuple[Sizes, ...]:
        return tuple(tuple(map(int, t.shape)) for t in (*self.tensors, *self.outputs))

    @property
    def scalars(self) -> dict[int, Any]:
        return {i: value for i, value in enumerate(self.inputs) if not isinstance(value, torch.Tensor)}

    @property
    def buffers(self) -> frozenset[str]:
        """The names of the state that is no parameter."""
        module = getattr(self.function, "__self__", None)
        named = module.named_buffers() if isinstance(module, torch.nn.Module) else ()
        return frozenset(name for name, _ in named)

    @property
    def fixed_state(self) -> int:
        """How many parameters and buffers have the constructor's values in every run."""
        module = getattr(self.function, "__self__", None)
        return len(state_of(module)) - len(self.state) if isinstance(module, torch.nn.Module) else 0

    @property
    def layouts(self) -> dict[int, tuple[int, ...]]:
        """Of the tensors of a call that are not contiguous, by position: their axes, the one with the largest steps
        first. No axes if elements lie apart, or are shared, so that other sizes have no such layout."""
        tensors = [t for t in self.inputs if isinstance(t, torch.Tensor)]
        return {i: _order_of(t) for i, t in enumerate(tensors) if not t.is_contiguous()}

    @property
    def ranks(self) -> list[int]:
        return [len(shape) for shape in self.shapes]


class Reference:
    """Runs the reference of a task.

    Args:
        seconds: after which no further run is tried, if one may be left out.

    Attributes:
        error: the exception of the last run on fake tensors.
        base: values in the place of the file's own constants, in every run.
        is_real: whether runs are on real tensors.
    """

    error = ""
    base: Mapping[str, int] = MappingProxyType({})
    is_real = False
    _deadline = math.inf

    def __init__(self, task: Task, source: Source, seconds: float = math.inf) -> None:
        self._task, self._source = task, source
        self._deadline = time.monotonic() + seconds

    @property
    def has_time(self) -> bool:
        return time.monotonic() < self._deadline

    def run(self, constants: Mapping[str, int], sizes: Mapping[Axis, int] | None = None) -> Run | None:
        """One run; None if the reference, or what makes its inputs, raises an exception.

        Args:
            constants: values in the place of the file's own.
            sizes: sizes in the place of those that the task gives its arguments, parameters and buffers.
        """
        try:
            with self._tensors(), RandomOperations() as drawn, torch.no_grad():
                function, state = self._function(constants)
                inputs = self._inputs(constants)
                drawn.first = ""  # what made the inputs and the parameters drew, too
                return self._called(function, inputs, state, sizes or {}, drawn)
        except Exception as error:  # the task's own code may raise anything
            if not self.is_real:
                self.error = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
            return None

    def elements(self, constants: Mapping[str, int]) -> int | None:
        """How many elements the arguments have; None if the task does not make them. Nothing is computed."""
        try:
            with fake_tensors(), torch.no_grad():
                tensors = [t for t in self._inputs(constants) if isinstance(t, torch.Tensor)]
                return sum(t.numel() for t in (*tensors, *self._function(constants)[1].values()))
        except Exception:  # the task's own code may raise anything
            return None

    def _tensors(self) -> contextlib.AbstractContextManager[Any]:
        return torch.random.fork_rng(devices=[]) if self.is_real else fake_tensors()

    def _called(
        self, function: Any, inputs: Sequence[Any], state: Mapping[str, torch.Tensor], sizes: Mapping[Axis, int],
        drawn: RandomOperations,
    ) -> Run:  # fmt: skip
        if sizes:
            tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
            resized = iter(_resized([*tensors, *state.values()], sizes))
            inputs = [next(resized) if isinstance(t, torch.Tensor) else t for t in inputs]
            state = dict(zip(state, resized, strict=True))
        versions = {name: version_of(t) for name, t in state.items()}
        with _Pointwise() as seen:
            if sizes and state:
                returned = torch.func.functional_call(function, dict(state), tuple(inputs))
            else:
                returned = function(*inputs)
        updated = tuple(name for name, t in state.items() if version_of(t) != versions[name])
        called = function.forward if isinstance(function, torch.nn.Module) else function
        outputs, returns_tuple = tuple(tree.tensors(returned)), not isinstance(returned, torch.Tensor)
        return Run(tuple(inputs), state, outputs, updated, drawn.first, returns_tuple, called, tuple(seen.operations))

    def _function(self, constants: Mapping[str, int]) -> tuple[Any, Mapping[str, torch.Tensor]]:
        """The reference, and its parameters and buffers if it is a module, but for more than an operator has."""
        task, names = self._task, self._source.run({**self.base, **constants})
        torch.manual_seed(task.seed)
        if not task.constructor:
            return names[task.reference], {}
        module = names[task.reference](*names[task.constructor]())
        return module, first_of(state_of(module))

    def _inputs(self, constants: Mapping[str, int]) -> tuple[Any, ...]:
        torch.manual_seed(self._task.seed)
        return tuple(self._source.run({**self.base, **constants})[self._task.inputs]())

    def real_tensors(self, constants: Mapping[str, int]) -> tuple[torch.Tensor, ...] | None:
        """The tensors of a call as the task draws them, then parameters and buffers; None if it raises."""
        try:
            inputs = [t for t in self._inputs(constants) if isinstance(t, torch.Tensor)]
            return (*inputs, *(t.detach() for t in self._function(constants)[1].values()))
        except Exception:  # the task's own code may raise anything
            return None

    def caller(self, constants: Mapping[str, int]) -> Callable[[Sequence[torch.Tensor]], Any]:
        """The reference as a function of all tensors, in the order of ``Run.tensors``."""
        function, state = self._function(constants)
        inputs = self._inputs(constants)

        def call(tensors: Sequence[torch.Tensor]) -> Any:
            listed = iter(tensors)
            given = tuple(next(listed) if isinstance(t, torch.Tensor) else t for t in inputs)
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                if not state:
                    return function(*given)
                values = {**dict(function.named_buffers()), **dict(zip(state, listed, strict=True))}
                return torch.func.functional_call(function, {name: t.clone() for name, t in values.items()}, given)

        return call


class _Pointwise(DispatchMode):  # type: ignore[misc]  # found at run time
    """A block whose pointwise operations it records."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = list[tuple[str, tuple[Sizes, ...]]]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.pointwise in function.tags:
            operands = tree.tensors([args, kwargs or {}])
            self.operations.append((function.name(), tuple(tuple(map(int, t.shape)) for t in operands)))
        return function(*args, **(kwargs or {}))


def _order_of(tensor: torch.Tensor) -> tuple[int, ...]:
    steps = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda axis: -int(steps[axis])))
    return order if tensor.permute(order).is_contiguous() else ()


def _stretches(operands: Sequence[Sizes], others: Sequence[Sizes]) -> bool:
    """Whether an axis has one element in an operand and more in another one, where others have equal sizes."""
    if [len(shape) for shape in operands] != [len(shape) for shape in others]:
        return False
    axes, other_axes = (itertools.zip_longest(*(reversed(shape) for shape in shapes)) for shapes in (operands, others))
    return any(
        1 in own and len(set(own) - {None}) > 1 and len(known := set(other) - {None}) == 1 and known != {1}
        for own, other in zip(axes, other_axes, strict=True)
    )


def _resized(tensors: Sequence[torch.Tensor], sizes: Mapping[Axis, int]) -> list[torch.Tensor]:
    shapes = [list(t.shape) for t in tensors]
    for (i, axis), size in sizes.items():
        shapes[i][axis] = size
    return [
        t if list(t.shape) == shape else torch.empty(shape, dtype=t.dtype, device=t.device)
        for t, shape in zip(tensors, shapes, strict=True)
    ]
