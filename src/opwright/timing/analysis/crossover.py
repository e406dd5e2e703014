"""Finds the fastest kernel by size range, from samples taken in turn at several sizes. Does not import torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from opwright.results import Comparison, ComparisonVerdict, SizeRange
from opwright.timing.analysis.statistics import compare

__all__ = ["Point", "cost_rounds", "ranges"]

Rounds = Sequence[Sequence[float]]
# How one kernel's time on a point compares with another's.
Compare = Callable[["Point", str, str], Comparison]


@dataclass(frozen=True, eq=False)
class Point:
    """One case: its size, and the rounds of call times of each kernel that ran (and was correct)."""

    elements: int
    dtype: str
    rounds: Mapping[str, Rounds]


def cost_rounds(call: Rounds, device: Rounds | None) -> Rounds:
    """The cost of a call in a program with many calls: host time or GPU time, whichever is longer."""
    if device is None or _median(call) >= _median(device):
        return call
    return device


def ranges(points: Sequence[Point], order: Sequence[str]) -> tuple[SizeRange, ...]:
    """The winner by number of elements.

    Args:
        points: of one dtype on one device.
        order: the kernels as they were attached, which is how calls choose without a table.

    From small to large, the current winner is replaced only if another kernel is FASTER at a size and SLOWER in no case
    of that size: SAME and UNCLEAR change nothing. The first winner is the kernel that calls would choose anyway. A
    change between two measured sizes is placed at their geometric mean.
    """
    by_size: dict[int, list[Point]] = {}
    for point in points:
        by_size.setdefault(point.elements, []).append(point)
    winners: list[tuple[int, str]] = []
    for elements, group in sorted(by_size.items()):
        there = [k for k in order if all(k in p.rounds for p in group)]
        if there:
            holder = winners[-1][1] if winners and winners[-1][1] in there else there[0]
            winners.append((elements, _winner(group, there, holder)))
    return _joined(winners)


def _winner(group: Sequence[Point], there: Sequence[str], holder: str) -> str:
    for challenger in there:
        if challenger != holder and _beats(group, challenger, holder):
            holder = challenger
    return holder


def _beats(group: Sequence[Point], challenger: str, holder: str) -> bool:
    verdicts = {_compare(p.rounds[challenger], p.rounds[holder]).verdict for p in group}
    return ComparisonVerdict.FASTER in verdicts and ComparisonVerdict.SLOWER not in verdicts


def _compare(ours: Rounds, theirs: Rounds) -> Comparison:
    # The numbers of rounds may differ; rounds that were not taken in turn are left out.
    common = min(len(ours), len(theirs))
    return compare(ours[:common], theirs[:common])


def _joined(winners: Sequence[tuple[int, str]]) -> tuple[SizeRange, ...]:
    found: list[SizeRange] = []
    for (elements, kernel), before in zip(winners, [None, *winners], strict=False):
        if before is not None and before[1] == kernel:
            continue
        least = 0 if before is None else max(before[0] + 1, round(math.sqrt(before[0] * elements)))
        if found:
            found[-1] = SizeRange(found[-1].least, least, found[-1].kernel)
        found.append(SizeRange(least, None, kernel))
    return tuple(found)


def _median(rounds: Rounds) -> float:
    return statistics.median(s for r in rounds for s in r)
