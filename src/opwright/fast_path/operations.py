"""Records the operations that a function does on tensors, as a list that native code runs without Python.

Recorded are the operations of torch's dispatcher, on fake tensors: what has no values cannot be read, so that a
function that decides by values, or computes outside of torch, is not recorded. ``templates/operations.h`` runs them for
inputs of the same dtypes, devices, sizes and strides. Calls of operators that the caller vouches for are made by their
objects in Python, whose guards lead to a kernel without a frame of Python.

``torch.fx.make_fx`` would give a graph in Python, whose calls of operators cost as much as the operators. Its tracer
patches modules in all threads. Inductor would compile for seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from opwright import tree
from opwright.internals.compiler import DispatchMode, fake_tensors
from opwright.internals.operators import Declared, declared_arguments

__all__ = ["Operations", "Unrecordable", "record"]

# Of torch's own operations on tensors.
_NAMESPACES = ("aten", "prims", "prim")
# By places in a storage, of which an input's tensor may be any part.
_BY_STORAGE = ("aten::as_strided", "aten::as_strided_copy", "aten::as_strided_scatter", "aten::set_", "aten::resize_")


class Unrecordable(Exception):
    """Why a function is not recorded."""


@dataclass
class _Step:
    """One operation.

    Attributes:
        arguments: all that its schema declares; a tensor is a tuple of its slot, lists are lists of these.
        results: the slots of its tensors; -1: nothing reads it.
        done: the slots that nothing reads later.
        called: what is called with the arguments in place of torch's operation of this name; None: nothing.
    """

    name: str
    overload: str
    arguments: list[Any]
    results: list[int]
    writes: bool
    done: list[int] = field(default_factory=list)
    called: Callable[..., Any] | None = None

    def described(self) -> tuple[Any, ...]:
        return self.name, self.overload, self.arguments, self.results, self.done

    def reads(self) -> list[int]:
        return [slot for each in self.arguments for slot in _slots_in(each)]


@dataclass(frozen=True)
class Operations:
    """Operations on slots, of which the first ones are the inputs, and the slots of the results; -1 is none."""

    steps: Sequence[_Step]
    slots: int
    results: Sequence[int]

    def described(self) -> tuple[Any, ...]:
        """In the form that operations.h reads."""
        return [step.described() for step in self.steps], self.slots, list(self.results)

    @property
    def calls(self) -> tuple[tuple[Callable[..., Any], list[Any]] | None, ...]:
        """For each step what is called in its place, with its arguments; None: torch's own operation."""
        return tuple([None if step.called is None else (step.called, step.arguments) for step in self.steps])


def record(
    function: Callable[[list[torch.Tensor]], Sequence[torch.Tensor | None]],
    inputs: Sequence[torch.Tensor],
    most: int,
    operators: Mapping[Any, Callable[..., Any]] | None = None,
) -> Operations:
    """The operations of a function of tensors like these.

    Args:
        function: takes fake tensors in the inputs' place; returns tensors.
        most: the number of operations beyond which it is not recorded.
        operators: other operations that may be recorded, whose results follow from their arguments and which write
            none of them: overloads of torch, with what is called in their place. It takes the arguments of the schema
            by position, and returns a tensor, or a tuple of the first results.

    Raises:
        Unrecordable: it does something else than such operations; or too many.
    """
    with fake_tensors() as as_fake:
        fakes = [as_fake(each.detach()) for each in inputs]
        recorder = _Recorder(fakes, most, operators or {})
        try:
            with recorder:
                results = function(fakes)
        except Exception as error:  # a function raises anything where it reads values
            raise Unrecordable(f"it does not run without values: {error}") from error
        return recorder.operations(results)


class _Recorder(DispatchMode):  # type: ignore[misc]
    def __init__(self, inputs: Sequence[torch.Tensor], most: int, operators: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self._most = most
        self._operators = operators
        self._refused: Unrecordable | None = None
        self._steps: list[_Step] = []
        self._kept: list[Any] = []  # so that ids stay theirs
        self._slots: dict[int, int] = {}
        self._owners: list[int | None] = []  # for each slot, the one whose memory it shares; None: an input's
        for each in inputs:
            self._new_slot(each, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            result = func(*args, **(kwargs or {}))
        except Exception as error:  # some code tries to read values, and does something else where it cannot
            self._refused = self._refused or Unrecordable(f"{func} does not run without values: {error}")
            raise
        if self._refused is None:
            try:
                self._note(func, args, kwargs or {}, result)
            except Unrecordable as error:  # raised at the end: torch also asks where it takes no exceptions
                self._refused = error
        return result

    def _note(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        declared = declared_arguments(func)
        called = self._operators.get(func)
        if declared is None or (called is None and func.namespace not in _NAMESPACES):
            raise Unrecordable(f"{func} may do more than its results show")  # such as communicate with others
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise Unrecordable(f"{func} gives other results in each call")
        if len(self._steps) >= self._most:
            raise Unrecordable(f"it has more than {self._most} operations")
        values = _all_values(declared, args, kwargs)
        arguments = [self._encoded(value) for value in values]
        if declared.name in _BY_STORAGE and any(self._owners[slot] is None for slot in _slots_in(arguments)):
            raise Unrecordable(f"{func} depends on an input's place in its storage")
        writes = False
        for argument, encoded in zip(declared.arguments, arguments, strict=True):
            if argument.writes:
                writes = True
                if any(self._owners[slot] is None for slot in _slots_in(encoded)):
                    raise Unrecordable(f"{func} writes an input")
        owner = self._owner(declared, arguments)
        tensors = tree.leaves(list(result) if isinstance(result, list | tuple) else [result])
        if not all(each is None or isinstance(each, torch.Tensor) for each in tensors):
            return  # a question about metadata, as fake tensors have no values
        results = [self._slot_of_result(each, owner) for each in tensors]
        self._steps.append(_Step(declared.name, declared.overload, arguments, results, writes, called=called))

    def _owner(self, declared: Declared, arguments: Sequence[Any]) -> int | None:
        """The slot whose memory the results share: of the first argument that they may be views of; -1: their own."""
        for argument, encoded in zip(declared.arguments, arguments, strict=True):
            if argument.is_aliased:
                for slot in _slots_in(encoded):
                    return self._owners[slot]
        return -1

    def _slot_of(self, value: Any) -> int:
        slot = self._slots.get(id(value)) if isinstance(value, torch.Tensor) else None
        if slot is None:
            raise Unrecordable("it uses a tensor of its own")
        return slot

    def _encoded(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return (self._slot_of(value),)
        if isinstance(value, list | tuple):
            return [self._encoded(each) for each in value]
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | torch.Generator):
            raise Unrecordable(f"it uses a {type(value).__name__}")
        return value

    def _slot_of_result(self, tensor: torch.Tensor | None, owner: int | None) -> int:
        if tensor is None:
            return -1
        known = self._slots.get(id(tensor))
        return self._new_slot(tensor, owner) if known is None else known

    def _new_slot(self, tensor: torch.Tensor, owner: int | None) -> int:
        slot = len(self._owners)
        self._slots[id(tensor)] = slot
        self._owners.append(slot if owner == -1 else owner)
        self._kept.append(tensor)
        return slot

    def operations(self, results: Sequence[torch.Tensor | None]) -> Operations:
        if self._refused is not None:
            raise self._refused
        slots = [-1 if r is None else self._slot_of(r) for r in results]
        return Operations(_with_ends(_needed(self._steps, slots), slots), len(self._owners), slots)


def _all_values(declared: Declared, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """A value for each argument; the dispatcher leaves out those that equal their defaults."""
    return [
        args[i] if i < len(args) else kwargs.get(argument.name, argument.default)
        for i, argument in enumerate(declared.arguments)
    ]


def _slots_in(encoded: Any) -> list[int]:
    if isinstance(encoded, tuple):
        return [encoded[0]]
    return [slot for each in encoded for slot in _slots_in(each)] if isinstance(encoded, list) else []


def _needed(steps: Sequence[_Step], results: Sequence[int]) -> list[_Step]:
    """Without those whose results nothing reads: a gradient seldom needs all of the forward. Those without a result
    stay, such as assertions; where one writes into a tensor, all do."""
    if any(step.writes for step in steps):
        return list(steps)
    wanted, needed = set(results), []
    for step in reversed(steps):
        if wanted.intersection(step.results) or all(slot < 0 for slot in step.results):
            needed.append(step)
            wanted.update(step.reads())
    return needed[::-1]


def _with_ends(steps: list[_Step], results: Sequence[int]) -> list[_Step]:
    """Each with the slots that nothing reads later, whose memory is free then."""
    kept = set(results)
    for step in reversed(steps):
        touched = dict.fromkeys([*step.reads(), *(slot for slot in step.results if slot >= 0)])
        step.done = [slot for slot in touched if slot not in kept]
        kept.update(touched)
    return steps
