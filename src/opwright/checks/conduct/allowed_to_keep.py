"""What a kernel may keep from one call to the next, and so skip.

It may keep what describes memory, as a tensor map does; what follows from sizes, as a table or a workspace; compiled
kernels; and what it makes of parameters, which stay the same. Nothing that is made of the values of a call's inputs may
be kept. So other values are written into the same memory: if the results are right and the call skips as much, what is
kept has none of these values.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from opwright import tree
from opwright.checks.calls.repeated_calls import is_right, take_one_element, write_into
from opwright.checks.conduct.steps import Steps, steps_and_results, steps_of
from opwright.checks.context import Context
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Prepared
from opwright.contract.signature import Argument

__all__ = ["Changes", "NewMemory", "Skipped", "again"]

# A result may be kept from a later call with the same arguments on. So many are made, if they end in time.
_MOST_CALLS, _SECONDS = 8, 0.5
# The bytes of a small tensor; how many more copies are made of it.
_SMALL, _MORE_COPIES = 1 << 12, 64


@dataclass(frozen=True)
class Skipped:
    """The steps that calls with known arguments skip.

    Attributes:
        steps: how often they are taken less than in a call with new values.
        most: of each of them, the most that a call with known arguments takes.
        reads: those that may read values of arguments.
        of_user: those that are functions of the user's.
    """

    steps: Counter[str]
    most: Mapping[str, int]
    reads: Set[str]
    of_user: Set[str]

    def taken_in(self, call: Steps) -> list[str]:
        """Those that a call does not skip."""
        return [step for step, most in self.most.items() if call.counts[step] > most]


class NewMemory:
    """Copies of arguments. All are held, so that none has the address of another: for a kernel that keeps something by
    address, a new copy has to be new."""

    def __init__(self) -> None:
        self._held = list[Any]()

    def copy_of(self, values: Sequence[Any]) -> list[Any]:
        # Small memory that earlier checks have freed is given out again, so that more of it is taken first.
        small = [t for t in tree.tensors(list(values)) if t.nbytes <= _SMALL]
        self._held.append([same_layout(small) for _ in range(_MORE_COPIES)])
        copied: list[Any] = same_layout(list(values))
        self._held.append(copied)
        return copied


def again(context: Context, arguments: Sequence[Any]) -> Steps:
    """The steps of the last of some further calls with the same arguments."""
    end = time.monotonic() + _SECONDS
    steps = steps_of(context, arguments)
    for _ in range(_MOST_CALLS - 1):
        if time.monotonic() > end:
            break
        steps = steps_of(context, arguments)
    return steps


@dataclass(frozen=True)
class Changes:
    """Calls in which only some arguments have other values.

    Args:
        first: the arguments of a call.
        unseen: values for the same sizes, of which the kernel has had none.
        memory: of copies.
    """

    context: Context
    first: Prepared
    unseen: Prepared
    memory: NewMemory
    _tried: dict[tuple[frozenset[int], bool], bool] = field(default_factory=dict)
    _not_allowed: list[str] = field(default_factory=list)

    def allow(self, skipped: Skipped, *, in_place: bool) -> bool:
        """Whether as much is skipped if inputs change: what is kept is not made of their values."""
        return any(self._skips(skipped, changed, in_place) for changed in self._inputs(in_place))

    def made_of(self, skipped: Skipped, *, in_place: bool) -> str:
        """The name of the argument that what is kept is made of alone; "" if there is none."""
        inputs = self._tensors() - self._parameters()
        for i in sorted(inputs):
            if len(inputs) > 1 and self._skips(skipped, inputs - {i}, in_place):
                return self._stated[i].name
        return ""

    def example(self, skipped: Skipped) -> str:
        """A step in words that the kernel may not skip, if possible a function of the user's."""
        steps = self._not_allowed or list(skipped.steps)
        return f"such as {min(steps, key=lambda step: (step not in skipped.of_user, step not in skipped.reads))}"

    @property
    def _stated(self) -> Sequence[Argument]:
        return self.context.op.contract.signature.arguments

    def _tensors(self) -> set[int]:
        return {i for i, value in enumerate(self.first.arguments) if tree.tensors([value])}

    def _parameters(self) -> set[int]:
        names = self.context.op.contract.own_inputs.parameters or ()
        return {i for i, a in enumerate(self._stated) if a.name in names}

    def _inputs(self, in_place: bool) -> Iterator[set[int]]:
        """Arguments that are inputs. Where nothing says which ones are, the first is: others may be weights."""
        tensors = self._tensors()
        if self.context.op.contract.own_inputs.parameters is not None:
            yield tensors - self._parameters()
            return
        if in_place:
            yield tensors
        if len(tensors) > 1:
            yield {min(tensors)}

    def _skips(self, skipped: Skipped, changed: set[int], in_place: bool) -> bool:
        """Whether a call skips as much, and is right, in which these arguments have unseen values. It is made once: a
        second one has values that the kernel has seen."""
        key = frozenset(changed), in_place
        if key not in self._tried:
            self._tried[key] = self._skips_at_first(skipped, changed, in_place)
        return self._tried[key]

    def _skips_at_first(self, skipped: Skipped, changed: set[int], in_place: bool) -> bool:
        if self._are_apart(changed) or not any(self._differs(i) for i in changed):
            return False
        arguments = self.memory.copy_of(self.first.arguments)
        again(self.context, arguments)
        if not in_place:
            return self._is_enough(skipped, self.memory.copy_of(self._with_unseen(changed)))
        self._write(arguments, changed)
        if not self._is_enough(skipped, arguments):
            return False
        inputs = self._tensors() - self._parameters()
        return all(self._is_only_described(skipped, arguments, i) for i in sorted(changed)) and all(
            self._follows(skipped, arguments, i) for i in sorted(inputs - changed)
        )

    def _is_only_described(self, skipped: Skipped, arguments: list[Any], i: int) -> bool:
        """Whether nothing that is kept for the memory of an argument has been made of its values, such as a decision
        that is right for other values, too."""
        moved = [*arguments[:i], *self.memory.copy_of([arguments[i]]), *arguments[i + 1 :]]
        steps = steps_of(self.context, moved)
        taken = skipped.taken_in(steps)
        if is_made_of_values := not steps.reads.isdisjoint(taken):
            self._not_allowed.extend(taken)
        return not is_made_of_values

    def _are_apart(self, changed: set[int]) -> bool:
        """Whether values that go together would be of two draws."""
        together = {i for i in self._tensors() - self._parameters() if self._stated[i].goes_together}
        return bool(together & changed) and not together <= changed

    def _differs(self, i: int) -> bool:
        pairs = zip(tree.tensors([self.first.arguments[i]]), tree.tensors([self.unseen.arguments[i]]), strict=True)
        return any(not torch.equal(one, other) for one, other in pairs)

    def _with_unseen(self, changed: set[int]) -> list[Any]:
        sources = (self.unseen if i in changed else self.first for i in range(len(self.first.arguments)))
        return [source.arguments[i] for i, source in enumerate(sources)]

    def _write(self, arguments: list[Any], changed: set[int]) -> None:
        for i in changed:
            (arguments[i],) = write_into([arguments[i]], [self.unseen.arguments[i]])

    def _is_enough(self, skipped: Skipped, arguments: list[Any]) -> bool:
        """Whether a call with these arguments skips as much, and is right."""
        values = same_layout(arguments)  # a kernel may write its arguments
        steps, results = steps_and_results(self.context, arguments)
        self._not_allowed.extend(taken := skipped.taken_in(steps))
        return not taken and self._are_right(results, values)

    def _are_right(self, results: tuple[Any, ...], values: list[Any]) -> bool:
        """Whether the reference gives the same for these arguments."""
        prepared = self.context.prepare_with(self.first.case, values)
        return isinstance(prepared, Prepared) and is_right(self.context, prepared, results) is None

    def _follows(self, skipped: Skipped, arguments: list[Any], i: int) -> bool:
        """Whether what is kept of an argument is not used for other values at its address."""
        if self._differs(i) and not self._stated[i].goes_together:
            return self._is_right_for_others(arguments, i)
        for tensor in tree.tensors([arguments[i]]):
            tensor.copy_(tensor.clone())
        takes_more = bool(skipped.taken_in(steps_of(self.context, arguments)))
        return takes_more or self._is_only_described(skipped, arguments, i)

    def _is_right_for_others(self, arguments: list[Any], i: int) -> bool:
        """Whether results are right after all of its values were replaced, and then one of them."""
        self._write(arguments, {i})
        if not self._are_right(self.context.run_kernel(arguments), same_layout(arguments)):
            return False
        for tensor, before in zip(tree.tensors([arguments[i]]), tree.tensors([self.first.arguments[i]]), strict=True):
            if tensor.numel() > 2 and 0 not in tensor.stride():
                take_one_element(tensor, before)
        return self._are_right(self.context.run_kernel(arguments), same_layout(arguments))
