"""What calls like an earlier one have in common, and a function that tells whether a call is like it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from opwright.contract.dtypes import zeros_in
from opwright.internals.guards import HAS_GUARDS, guard_tensors

__all__ = ["Guard", "holds_in_python", "make_guard"]


@dataclass(frozen=True)
class Guard:
    """Tensors are compared by type, dtype, device, sizes, strides, dispatch keys and requires_grad, other arguments by
    type and value. Modes are not.

    Attributes:
        arguments: their number.
        check: torch's guard; takes the tensors.
        tensors: their positions, each tensor once; ``examples`` are those of the earlier call.
        repeats: positions with a tensor that is also at an earlier one, with that.
        constants: other arguments by position.
        flags: lists of bools by position.
        tracking: grad mode, where it matters: torch's guard compares requires_grad only.
    """

    arguments: int
    check: Callable[..., bool]
    tensors: tuple[int, ...]
    examples: tuple[torch.Tensor, ...]
    repeats: tuple[tuple[int, int], ...] = ()
    constants: tuple[tuple[int, Any], ...] = ()
    flags: tuple[tuple[int, tuple[bool, ...]], ...] = ()
    tracking: bool | None = None


def make_guard(arguments: Sequence[Any], tracking: bool | None) -> Guard | None:
    """The guard of a call; None if there are lists of anything but flags, or no tensor."""
    first: dict[int, int] = {}  # the first position of each tensor, by its id
    repeats = []
    constants, flags = [], []
    for i, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor):
            if first.setdefault(id(argument), i) != i:
                repeats.append((i, first[id(argument)]))
        elif _are_flags(argument):
            flags.append((i, tuple(argument)))
        elif isinstance(argument, list | tuple) or argument != argument:
            return None
        else:
            constants.append((i, argument))
    if not first or not HAS_GUARDS:
        return None
    tensors = tuple(first.values())
    examples = tuple(arguments[i] for i in tensors)
    check = guard_tensors(examples)
    return Guard(len(arguments), check, tensors, examples, tuple(repeats), tuple(constants), tuple(flags), tracking)


def _are_flags(argument: Any) -> bool:
    """Whether an argument is a list of bools, such as the ``needs`` of a backward operator: it has few values. A list
    of numbers may have others in each call, so that a guard would not be worth its time."""
    return type(argument) is list and all(type(item) is bool for item in argument)


def holds_in_python(guard: Guard) -> Callable[..., bool]:
    """A function of a call's arguments that tells whether a guard holds; for tensors only, torch's guard itself."""
    holds = guard.check
    if guard.repeats or guard.constants or guard.flags:
        holds = _with_repeats_and_constants(guard)
    if guard.flags:
        holds = _with_flags(holds, guard.flags)
    return holds if guard.tracking is None else _in_grad_mode(holds, guard.tracking)


def _with_flags(holds: Callable[..., bool], flags: Sequence[tuple[int, Sequence[bool]]]) -> Callable[..., bool]:
    """A guard that also compares lists of bools, and the types of their items: 1 equals True."""
    expected = [(position, list(values), [bool] * len(values)) for position, values in flags]

    def holds_with(*arguments: Any) -> bool:
        for position, values, kinds in expected:
            given = arguments[position]
            if type(given) is not list or given != values or [*map(type, given)] != kinds:
                return False
        return holds(*arguments)

    return holds_with


def _with_repeats_and_constants(guard: Guard) -> Callable[..., bool]:
    check, repeats = guard.check, guard.repeats
    constants = [(position, type(value), value) for position, value in guard.constants]
    zeros = [(position, text) for position, value in guard.constants if (text := zeros_in(value))]
    only = guard.tensors[0] if len(guard.tensors) == 1 else None
    pick = itemgetter(*guard.tensors)  # of one position it gives the item, of several a tuple of them

    def holds(*arguments: Any) -> bool:
        for position, kind, value in constants:
            argument = arguments[position]
            if type(argument) is not kind or argument != value:
                return False
        for position, text in zeros:
            if repr(arguments[position]) != text:
                return False
        for position, earlier in repeats:
            if arguments[position] is not arguments[earlier]:
                return False
        return check(arguments[only]) if only is not None else check(*pick(arguments))

    return holds


def _in_grad_mode(holds: Callable[..., bool], tracking: bool) -> Callable[..., bool]:
    is_on = torch.is_grad_enabled

    def holds_then(*arguments: Any) -> bool:
        return is_on() is tracking and holds(*arguments)

    return holds_then
