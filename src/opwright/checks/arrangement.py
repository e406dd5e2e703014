"""The order in which a check's units are given out, and which kernels are cut into slices for a cluster.

What is longest begins first; on one machine, of each operator, whose kernels have a judge together. A kernel is cut
where whole kernels would keep some machines waiting at the end: each slice starts its processes and loads the kernel
anew, so that cutting all of them would only be more work.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from opwright.checks.slices import SliceUnit, can_be_cut, slices_of
from opwright.checks.table import SLICES
from opwright.checks.unit import CheckUnit
from opwright.results import Verdict

__all__ = ["START", "USUAL", "Held", "Piece", "arranged", "name_of", "seconds_by_slice"]

# What each slice takes besides its checks: processes, imports, the kernel, the cases.
START = "start"
# Of a kernel that was never checked: what others of a gallery took, in seconds.
USUAL = {START: 1.5, "values": 4.0, "memory": 1.0, "derivatives": 1.5}
# Only so much shorter a sweep is worth the cutting of another kernel.
_WORTH = 0.99


class Held(Enum):
    """What an earlier run has finished of a kernel."""

    NOTHING = 0
    SLICES = 1
    VERDICT = 2


@dataclass(frozen=True)
class Piece:
    """A unit that is given out: a kernel, or a slice of one.

    Attributes:
        kernel: its number among the units of the check.
        seconds: how long it probably takes.
    """

    kernel: int
    unit: CheckUnit | SliceUnit
    seconds: float


def arranged(
    units: Sequence[CheckUnit],
    known: Mapping[str, Mapping[str, float]],
    room: Callable[[CheckUnit], int],
    held: Callable[[CheckUnit], Held],
) -> list[Piece]:
    """The pieces of a check, in the order in which they are given out.

    Args:
        known: how long parts of kernels took before, by ``name_of``.
        room: how many units of a kind run at a time; 1 if they are not to be cut.
        held: what there is of a kernel already, from an earlier run.
    """
    kinds: dict[tuple[bool, int], list[int]] = {}
    for number, unit in enumerate(units):
        kinds.setdefault((unit.needs.gpu, room(unit)), []).append(number)
    seconds = _estimates(units, known)
    kernels = [_Kernel(n, unit, seconds[n], held(unit)) for n, unit in enumerate(units)]
    found: list[Piece] = []
    for (_, slots), numbers in kinds.items():
        if slots == 1:
            found += [piece for n in _by_operators(kernels, numbers) for piece in kernels[n].pieces(cut=False)]
        else:
            found += _best([kernels[n] for n in numbers], slots)
    return found


def _by_operators(kernels: Sequence[_Kernel], numbers: Sequence[int]) -> list[int]:
    """The kernels of one operator after those of another, the longest first."""
    operators = list(dict.fromkeys(id(kernels[n].unit.task.op) for n in numbers))
    return sorted(numbers, key=lambda n: (operators.index(id(kernels[n].unit.task.op)), -kernels[n].total))


@dataclass(frozen=True)
class _Kernel:
    number: int
    unit: CheckUnit
    seconds: Mapping[str, float]
    held: Held

    @property
    def total(self) -> float:
        return 0.0 if self.held is Held.VERDICT else sum(self.seconds.values())

    def pieces(self, *, cut: bool) -> list[Piece]:
        """The kernel in one piece, or in slices if that is asked for and there is something to cut."""
        if self.held is Held.SLICES or (cut and self.held is Held.NOTHING and can_be_cut(self.unit)):
            return [Piece(self.number, one, self._length(one)) for one in slices_of(self.unit)]
        return [Piece(self.number, self.unit, self.total)]

    def _length(self, one: SliceUnit) -> float:
        shares = 1 if one.share is None else one.share.count
        return self.seconds[START] + self.seconds[one.label] / shares


def _best(kernels: Sequence[_Kernel], slots: int) -> list[Piece]:
    """The pieces with which the sweep probably ends first: the longest kernels are cut, as many as that is good for."""
    # Sorted by length; those of one length stay in their order.
    order = sorted(kernels, key=lambda kernel: -kernel.total)
    chosen, shortest = _pieces(order, 0), float("inf")
    for count in _counts(len(order), slots):
        pieces = _pieces(order, count)
        end = _end(pieces, slots)
        if end < _WORTH * shortest:
            chosen, shortest = pieces, end
    return chosen


def _counts(kernels: int, slots: int) -> Iterator[int]:
    """The numbers of kernels that are tried to be cut. With very many kernels for each slot, all slots are busy until
    nearly the end anyway."""
    yield 0
    if kernels <= 8 * slots:
        step = max(1, min(kernels, 2 * slots) // 32)
        yield from range(1, min(kernels, 2 * slots) + 1, step)


def _pieces(order: Sequence[_Kernel], cut: int) -> list[Piece]:
    found = [piece for place, kernel in enumerate(order) for piece in kernel.pieces(cut=place < cut)]
    return sorted(found, key=lambda piece: -piece.seconds)


def _end(pieces: Sequence[Piece], slots: int) -> float:
    """When the last piece ends, if each begins on the first machine that is free."""
    free = [0.0] * slots
    for piece in pieces:
        heapq.heapreplace(free, free[0] + piece.seconds)
    return max(free)


# -- how long kernels take ---------------------------------------------------------------------------------------------


def name_of(unit: CheckUnit) -> str:
    """By which a kernel's lengths are noted: what else they depend on is in it."""
    settings = unit.settings
    return " ".join([unit.name, settings.level, f"ranks={settings.ranks}", *settings.checks])


def seconds_by_slice(verdict: Verdict) -> dict[str, float]:
    """How long the checks of each slice took, and everything before them."""
    of_check = {check: label for label, checks in SLICES.items() for check in checks}
    found = dict.fromkeys([START, *SLICES], 0.0)
    for step, seconds in verdict.step_seconds.items():
        if step != "build":  # it is built once
            found[of_check.get(step, START)] += seconds
    return found


def _estimates(units: Sequence[CheckUnit], known: Mapping[str, Mapping[str, float]]) -> list[Mapping[str, float]]:
    """For each unit what it took before; else what others of its operator took, or others at all."""
    of_units = [known.get(name_of(unit)) for unit in units]
    complete = [parts if parts is not None and parts.keys() >= USUAL.keys() else None for parts in of_units]
    of_operators: dict[str, list[Mapping[str, float]]] = {}
    for unit, parts in zip(units, complete, strict=True):
        if parts is not None:
            of_operators.setdefault(unit.task.op.contract.qualname, []).append(parts)
    others = _middle([parts for parts in complete if parts is not None])
    usual = {name: _middle(of) for name, of in of_operators.items()}
    return [
        parts or usual.get(unit.task.op.contract.qualname, others) for unit, parts in zip(units, complete, strict=True)
    ]


def _middle(lengths: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    return {part: statistics.median(of[part] for of in lengths) for part in USUAL} if lengths else USUAL
