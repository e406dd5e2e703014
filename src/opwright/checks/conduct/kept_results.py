"""Whether a kernel does less in a call whose arguments it has had before: it keeps results instead of computing them.

Such results are right, and each benchmark that repeats a call measures a look-up. So the steps that a call with known
arguments skips are compared with those of the first call. ``allowed_to_keep.py`` says which of them it may skip.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from opwright.checks.conduct.allowed_to_keep import Changes, NewMemory, Skipped, again
from opwright.checks.conduct.steps import Steps, steps_of
from opwright.checks.context import Context
from opwright.checks.observation import Prepared

__all__ = ["Kept", "kept_results"]

# What a kernel sets up, it sets up in the first of these calls.
_FIRST_CALLS = 2


@dataclass(frozen=True)
class Kept:
    """What a kernel keeps, in words.

    Attributes:
        is_one_argument: whether it is made of one argument alone, which may be a weight that it packs.
    """

    words: str
    is_one_argument: bool = False


@dataclass(frozen=True)
class _Calls:
    """The steps of a call with new values, of the last of some calls with the same tensors again, and of one with equal
    values at other addresses."""

    new: Steps
    same: Steps
    equal: Steps


def kept_results(context: Context, draws: Sequence[Prepared]) -> Kept | None:
    """What it keeps instead of computing it; None if each call computes.

    Args:
        draws: the arguments of one case with several values.
    """
    first, *others, unseen = draws
    memory = NewMemory()
    for _ in range(_FIRST_CALLS):
        steps_of(context, memory.copy_of(first.arguments))
    calls = [_calls(context, memory, draw, first, number) for number, draw in enumerate(others)]
    new = [each.new for each in calls]
    changes = Changes(context, first, unseen, memory)
    for words, known, in_place in (
        ("equal values at other addresses", [each.equal for each in calls], False),
        ("the same tensors again", [each.same for each in calls], True),
    ):
        skipped = _skipped(new, known)
        if not skipped.steps or changes.allow(skipped, in_place=in_place):
            continue
        argument = changes.made_of(skipped, in_place=in_place)
        what = f"what it makes of the argument {argument!r}" if argument else "results"
        count = f"{skipped.steps.total():,} of {min(each.counts.total() for each in new):,} steps"
        steps = f"a call skips {count}, {changes.example(skipped)}"
        return Kept(f"it keeps {what}: for {words}, {steps}", is_one_argument=bool(argument))
    return None


def _calls(context: Context, memory: NewMemory, draw: Prepared, first: Prepared, number: int) -> _Calls:
    for _ in range(number):  # a kernel may use its buffers in turn: then a step is not skipped in each place of a turn
        steps_of(context, memory.copy_of(first.arguments))
    copies = [memory.copy_of(draw.arguments) for _ in range(2)]
    arguments, others = reversed(copies) if number % 2 else copies  # one may have an address of earlier checks' calls
    new = steps_of(context, arguments)
    same = new if any(a.mutated for a in context.op.contract.signature.arguments) else again(context, arguments)
    return _Calls(new, same, steps_of(context, others))


def _skipped(new: Sequence[Steps], known: Sequence[Steps]) -> Skipped:
    """The steps that a call with known arguments skips, for all values."""
    differences = [before.counts - after.counts for before, after in zip(new, known, strict=True)]
    skipped = functools.reduce(operator.and_, differences)
    most = {step: max(after.counts[step] for after in known) for step in skipped}
    return Skipped(skipped, most, new[0].reads, new[0].of_user)
