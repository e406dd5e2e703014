"""The order in which a check's work items are given out, and which kernels are split into several items for a cluster.

The longest item begins first; on one machine, of each operator, whose kernels share a checker process. A kernel is
split where whole kernels would keep some machines waiting at the end. Each partial item starts processes and loads the
kernel anew, so splitting all kernels would only be more work.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from opwright.checks.scheduling.check_item import CheckItem
from opwright.checks.scheduling.partial_items import PartialItem, can_be_split, partial_items_of
from opwright.checks.table import GROUPS
from opwright.results import Verdict

__all__ = ["START", "USUAL", "Finished", "ScheduledItem", "arranged", "name_of", "seconds_by_group"]

# What each item takes besides its checks: processes, imports, the kernel, the cases.
START = "start"
# Of a kernel that was never checked: what others of a gallery took, in seconds.
USUAL = {START: 1.5, "values": 4.0, "memory": 1.0, "derivatives": 1.5}
# Only so much shorter a sweep is worth the splitting of another kernel.
_WORTH = 0.99


class Finished(Enum):
    """What an earlier run has finished of a kernel."""

    NOTHING = 0
    SOME = 1
    ALL = 2


@dataclass(frozen=True)
class ScheduledItem:
    """A work item in the order in which items are given out: all checks of a kernel, or some of them.

    Attributes:
        kernel: its number among the items of the check.
        seconds: how long it probably takes.
    """

    kernel: int
    item: CheckItem | PartialItem
    seconds: float


def arranged(
    items: Sequence[CheckItem],
    known: Mapping[str, Mapping[str, float]],
    slots_for: Callable[[CheckItem], int],
    finished: Callable[[CheckItem], Finished],
) -> list[ScheduledItem]:
    """The items of a check, in the order in which they are given out.

    Args:
        known: how long parts of kernels took before, by ``name_of``.
        slots_for: how many items of a kind run at a time; 1 if they are not to be split.
        finished: what an earlier run has finished of a kernel.
    """
    kinds: dict[tuple[bool, int], list[int]] = {}
    for number, item in enumerate(items):
        kinds.setdefault((item.needs.gpu, slots_for(item)), []).append(number)
    seconds = _estimates(items, known)
    kernels = [_Kernel(n, item, seconds[n], finished(item)) for n, item in enumerate(items)]
    found: list[ScheduledItem] = []
    for (_, slots), numbers in kinds.items():
        if slots == 1:
            found += [item for n in _by_operators(kernels, numbers) for item in kernels[n].scheduled(split=False)]
        else:
            found += _best([kernels[n] for n in numbers], slots)
    return found


def _by_operators(kernels: Sequence[_Kernel], numbers: Sequence[int]) -> list[int]:
    """The kernels of one operator after those of another, the longest first."""
    operators = list(dict.fromkeys(id(kernels[n].item.task.op) for n in numbers))
    return sorted(numbers, key=lambda n: (operators.index(id(kernels[n].item.task.op)), -kernels[n].total))


@dataclass(frozen=True)
class _Kernel:
    number: int
    item: CheckItem
    seconds: Mapping[str, float]
    finished: Finished

    @property
    def total(self) -> float:
        return 0.0 if self.finished is Finished.ALL else sum(self.seconds.values())

    def scheduled(self, *, split: bool) -> list[ScheduledItem]:
        """The kernel in one item, or in partial items if that is asked for and there is something to split."""
        if self.finished is Finished.SOME or (split and self.finished is Finished.NOTHING and can_be_split(self.item)):
            return [ScheduledItem(self.number, one, self._length(one)) for one in partial_items_of(self.item)]
        return [ScheduledItem(self.number, self.item, self.total)]

    def _length(self, one: PartialItem) -> float:
        count = 1 if one.case_range is None else one.case_range.count
        return self.seconds[START] + self.seconds[one.group] / count


def _best(kernels: Sequence[_Kernel], slots: int) -> list[ScheduledItem]:
    """The items with which the sweep probably ends first: the longest kernels are split, as many as that pays for."""
    # Sorted by length; those of one length stay in their order.
    order = sorted(kernels, key=lambda kernel: -kernel.total)
    chosen, shortest = _scheduled(order, 0), float("inf")
    for count in _counts(len(order), slots):
        items = _scheduled(order, count)
        end = _end(items, slots)
        if end < _WORTH * shortest:
            chosen, shortest = items, end
    return chosen


def _counts(kernels: int, slots: int) -> Iterator[int]:
    """The numbers of kernels that are tried to be split. With very many kernels for each slot, all slots are busy until
    nearly the end anyway."""
    yield 0
    if kernels <= 8 * slots:
        step = max(1, min(kernels, 2 * slots) // 32)
        yield from range(1, min(kernels, 2 * slots) + 1, step)


def _scheduled(order: Sequence[_Kernel], split: int) -> list[ScheduledItem]:
    found = [item for place, kernel in enumerate(order) for item in kernel.scheduled(split=place < split)]
    return sorted(found, key=lambda item: -item.seconds)


def _end(items: Sequence[ScheduledItem], slots: int) -> float:
    """When the last item ends, if each begins on the first machine that is free."""
    free = [0.0] * slots
    for item in items:
        heapq.heapreplace(free, free[0] + item.seconds)
    return max(free)


# -- how long kernels take ---------------------------------------------------------------------------------------------


def name_of(item: CheckItem) -> str:
    """By which a kernel's lengths are noted: what else they depend on is in it."""
    settings = item.settings
    return " ".join([item.name, settings.level, f"ranks={settings.ranks}", *settings.checks])


def seconds_by_group(verdict: Verdict) -> dict[str, float]:
    """How long the checks of each group took, and everything before them."""
    of_check = {check: group for group, checks in GROUPS.items() for check in checks}
    found = dict.fromkeys([START, *GROUPS], 0.0)
    for step, seconds in verdict.step_seconds.items():
        if step != "build":  # it is built once
            found[of_check.get(step, START)] += seconds
    return found


def _estimates(items: Sequence[CheckItem], known: Mapping[str, Mapping[str, float]]) -> list[Mapping[str, float]]:
    """For each item what it took before; else what others of its operator took, or others at all."""
    of_items = [known.get(name_of(item)) for item in items]
    complete = [parts if parts is not None and parts.keys() >= USUAL.keys() else None for parts in of_items]
    of_operators: dict[str, list[Mapping[str, float]]] = {}
    for item, parts in zip(items, complete, strict=True):
        if parts is not None:
            of_operators.setdefault(item.task.op.contract.qualname, []).append(parts)
    others = _middle([parts for parts in complete if parts is not None])
    usual = {name: _middle(of) for name, of in of_operators.items()}
    return [
        parts or usual.get(item.task.op.contract.qualname, others) for item, parts in zip(items, complete, strict=True)
    ]


def _middle(lengths: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    return {part: statistics.median(of[part] for of in lengths) for part in USUAL} if lengths else USUAL
