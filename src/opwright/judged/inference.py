"""Infers a contract: runs a reference with other sizes, and keeps what it accepts.

Tensors are fake, so that nothing is computed and no memory is taken, whatever the sizes are.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from opwright import tree
from opwright.contract.definition.randomness import RandomOperations
from opwright.contract.dtypes import short
from opwright.errors import TargetError
from opwright.internals.compiler import fake_tensors
from opwright.internals.tensors import version_of
from opwright.judged.called import parameters_of, state_of
from opwright.judged.fitting import fit
from opwright.judged.relations import relations_of
from opwright.judged.sources import Source
from opwright.judged.task import Task

__all__ = ["Inferred", "InferredTensor", "infer"]

Sizes = tuple[int, ...]
_TRIALS = 40
# Values for a constant, beside its own: small, odd, a power of two and its neighbours.
_POOL = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 33, 64)


@dataclass(frozen=True)
class InferredTensor:
    """An argument or an output: its name, the dtype's short name, and its dims as text."""

    name: str
    dtype: str
    dims: tuple[str, ...]
    low: float | None = None
    high: float | str | None = None


@dataclass(frozen=True)
class Inferred:
    """What was inferred of a task.

    Attributes:
        arguments: of the operator: those of a call, then parameters and buffers.
        state: the names of parameters and buffers, as the module has them.
        constants: by name, the argument and the axis that has their size.
        where: relations of the constants.
        fixed: what was taken as fixed, and why; one sentence each.
        is_random: whether the reference draws random numbers.
    """

    arguments: tuple[InferredTensor, ...]
    outputs: tuple[InferredTensor, ...]
    state: tuple[str, ...] = ()
    constants: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    own: Mapping[str, int] = field(default_factory=dict)
    where: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    is_random: bool = False
    returns_tuple: bool = False
    scalars: Mapping[int, Any] = field(default_factory=dict)

    @property
    def has_one_shape(self) -> bool:
        """Whether only the given sizes are possible."""
        return not self.constants


@dataclass(frozen=True)
class _Run:
    """One run of the reference: what it got and returned."""

    inputs: tuple[Any, ...]
    state: Mapping[str, torch.Tensor]
    outputs: tuple[torch.Tensor, ...]
    updated: tuple[str, ...]
    draws: str
    returns_tuple: bool
    function: Callable[..., Any]

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
    def ranks(self) -> list[int]:
        return [len(shape) for shape in self.shapes]


class _Reference:
    """Runs the reference of a task with values for its constants, on fake tensors."""

    def __init__(self, task: Task, source: Source) -> None:
        self._task, self._source = task, source
        self.error = ""

    def run(self, constants: Mapping[str, int]) -> _Run | None:
        """One run; None if the reference, or what makes its inputs, raises an exception: ``error`` is its text."""
        try:
            with fake_tensors(), RandomOperations() as drawn, torch.no_grad():
                return self._run(constants, drawn)
        except Exception as error:  # the task's own code may raise anything
            self.error = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
            return None

    def _run(self, constants: Mapping[str, int], drawn: RandomOperations) -> _Run:
        task, names = self._task, self._source.run(constants)
        torch.manual_seed(task.seed)
        inputs = tuple(names[task.inputs]())
        function, state = names[task.reference], dict[str, torch.Tensor]()
        if task.constructor:
            function = function(*names[task.constructor]())
            state = state_of(function)
        drawn.first = ""  # what made the inputs and the parameters drew, too
        versions = {name: version_of(t) for name, t in state.items()}
        returned = function(*inputs)
        outputs = tuple(tree.tensors(returned))
        updated = tuple(name for name, t in state.items() if version_of(t) != versions[name])
        called = function.forward if task.constructor else function
        return _Run(inputs, state, outputs, updated, drawn.first, not isinstance(returned, torch.Tensor), called)


def infer(task: Task) -> Inferred:
    """Infer the contract of a task.

    Raises:
        TargetError: the reference does not run on its own inputs, or has what no contract states.
    """
    source = Source(task.file)
    _refuse_missing(task, source)
    reference = _Reference(task, source)
    own = reference.run({})
    if own is None:
        raise TargetError(
            f"{task.file}: {task.reference} must run on the inputs of {task.inputs}, got {reference.error}",
            fix="correct the reference",
        )
    _refuse_unstated(task, own)
    tried = _vary(reference, source.constants, own)
    constants, dims = _fitted(own, source.constants, tried)
    runs = _together(reference, {name: source.constants[name] for name in constants}, own)
    constants, dims = _fitted(own, source.constants, {name: tried[name] for name in constants}, runs)
    where = relations_of({n: source.constants[n] for n in constants}, [(v, run is not None) for v, run in runs])
    names = _unique([*parameters_of(own.function, len(own.inputs)), *own.state])
    names = [name for name, t in zip(names, (*own.inputs, *own.state.values()), strict=True) if _is_tensor(t)]
    count = len(own.tensors)
    arguments = tuple(map(InferredTensor, names, (short(t.dtype) for t in own.tensors), dims[:count]))
    outputs = (InferredTensor("", short(t.dtype), d) for t, d in zip(own.outputs, dims[count:], strict=True))
    return Inferred(
        arguments=arguments,
        outputs=tuple(outputs),
        state=tuple(own.state),
        constants={name: _place_of(name, dims[:count]) for name in constants},
        own={name: source.constants[name] for name in constants},
        where=(*(f"{name} >= 1" for name in constants), *where),
        fixed=tuple(_fixed(task, source, own, constants, tried)),
        is_random=bool(own.draws),
        returns_tuple=own.returns_tuple,
        scalars=own.scalars,
    )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _refuse_missing(task: Task, source: Source) -> None:
    for name in filter(None, (task.reference, task.inputs, task.constructor)):
        if name not in source.defined():
            raise TargetError(
                f"{task.file} must define {name!r}, got {sorted(source.defined())}", fix="name another file or format"
            )


def _refuse_unstated(task: Task, own: _Run) -> None:
    nested = [value for value in own.inputs if not _is_tensor(value) and tree.tensors(value)]
    if nested:
        raise TargetError(
            f"{task.file}: {task.inputs} returns a {type(nested[0]).__name__} of tensors", fix="list them"
        )
    if not own.tensors or not own.outputs:
        raise TargetError(f"{task.file}: {task.reference} takes or returns no tensor", fix="name another task")


# --- which constants may differ, and what they determine ---

# By constant: its value, and the run with it.
_Tried = Mapping[str, Sequence[tuple[Mapping[str, int], _Run]]]


def _vary(reference: _Reference, constants: Mapping[str, int], own: _Run) -> _Tried:
    """Runs with another value for one constant each, for those constants that change a size and that may differ."""
    found = dict[str, list[tuple[Mapping[str, int], _Run]]]()
    for name, value in constants.items():
        runs = list[tuple[Mapping[str, int], _Run]]()
        for other in dict.fromkeys((2 * value, value + 1, max(1, value // 2), 3 * value)):
            if other != value and (run := reference.run({name: other})) is not None:
                runs.append(({**constants, name: other}, run))
        runs = [(values, run) for values, run in runs if run.ranks == own.ranks and run.scalars == own.scalars]
        if any(run.shapes != own.shapes for _, run in runs):
            found[name] = runs
    return found


def _fitted(
    own: _Run,
    values_of_own: Mapping[str, int],
    tried: _Tried,
    together: Sequence[tuple[Mapping[str, int], _Run | None]] = (),
) -> tuple[list[str], list[tuple[str, ...]]]:
    """The constants whose values the sizes of the arguments show, and each size as an expression of them.

    A constant that changes a size, and is no size of an argument itself, is taken as fixed, and so is one that changes
    a size in a way that no expression has.
    """
    constants = list(tried)
    while True:
        runs = [(values_of_own, own), *(each for name in constants for each in tried[name])]
        # A run of all constants tells nothing if one of them is taken as fixed.
        runs += [(v, r) for v, r in together if r is not None and v.keys() == set(constants)]
        observed = [({name: values[name] for name in constants}, run) for values, run in runs]
        dims = [
            tuple(_fit_axis(observed, own, i, axis) for axis in range(len(shape))) for i, shape in enumerate(own.shapes)
        ]
        arguments = dims[: len(own.tensors)]
        unknown = [name for name in constants if not any(name in each for each in arguments)]
        unknown = unknown or [name for name in constants if any("" in each for each in arguments)][-1:]
        if not unknown:
            return constants, [tuple(dim or "_" for dim in each) for each in dims]
        constants = [name for name in constants if name not in unknown]


def _fit_axis(observed: Sequence[tuple[Mapping[str, int], _Run]], own: _Run, i: int, axis: int) -> str:
    """The size of one axis as an expression; "" if there is none."""
    sizes = [(values, run.shapes[i][axis]) for values, run in observed] or [({}, own.shapes[i][axis])]
    return fit(sizes) or ""


def _place_of(name: str, dims: Sequence[tuple[str, ...]]) -> tuple[int, int]:
    return next((i, each.index(name)) for i, each in enumerate(dims) if name in each)


def _together(
    reference: _Reference, constants: Mapping[str, int], own: _Run
) -> list[tuple[Mapping[str, int], _Run | None]]:
    """Runs with other values for all constants; None for each that the reference refuses."""
    if not constants:
        return []
    draw = random.Random(0)
    found = list[tuple[Mapping[str, int], _Run | None]]()
    for values in itertools.islice(_drawn(draw, constants), _TRIALS):
        run = reference.run(values)
        if run is not None and run.ranks != own.ranks:
            run = None
        found.append((values, run))
    return found


def _drawn(draw: random.Random, constants: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """Small values and the constants' own, together."""
    while True:
        yield {name: draw.choice((*_POOL, value)) for name, value in constants.items()}


def _fixed(task: Task, source: Source, own: _Run, constants: Sequence[str], tried: _Tried) -> Iterator[str]:
    dtypes = ", ".join(dict.fromkeys(short(t.dtype) for t in own.tensors))
    yield f"dtype {dtypes}: the task has no other"
    yield "contiguous arguments: the task makes no others"
    for name, value in source.constants.items():
        if name in tried and name not in constants:
            yield f"{name} = {value}: no size of an argument shows it"
        elif name not in tried:
            yield f"{name} = {value}: another value changes no size, or the reference refuses it"
    for name in own.updated:
        yield f"{name}: the reference updates it, and only its results are compared"
    for value in own.scalars.values():
        yield f"the argument {value!r}: the task has no other"


def _unique(names: Sequence[str]) -> list[str]:
    """The names as Python identifiers that differ from each other."""
    found = list[str]()
    for name in names:
        plain = name.replace(".", "_")
        while plain in found:
            plain += "_"
        found.append(plain)
    return found
