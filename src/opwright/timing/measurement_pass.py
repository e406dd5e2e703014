"""Measures several candidates on one case in turn, so that drift affects all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opwright.timing.analysis.statistics import StopRule
from opwright.timing.candidates import Candidate
from opwright.timing.hardware.clocks import ClockWatch
from opwright.timing.timers import Timer

__all__ = ["Samples", "measure_in_turn"]

_PER_ROUND = 5
# From this time on, one sample per round is enough: disturbances are small relative to it.
_SLOW_US = 50_000.0


@dataclass
class Samples:
    """Rounds of samples of one candidate; the same round of two candidates was taken one after the other."""

    rounds: list[list[float]] = field(default_factory=list)

    @property
    def all(self) -> list[float]:
        return [s for r in self.rounds for s in r]


def measure_in_turn(
    timer: Timer,
    candidates: Sequence[Candidate],
    sets: Mapping[str, Sequence[Any]],
    how: str,
    rule: StopRule,
    watch: ClockWatch,
    log: Callable[[str], None],
) -> dict[str, Samples]:
    """Take rounds of a few samples of each candidate in turn, until the stop rule is satisfied for all.

    Args:
        sets: each candidate's input sets, by its name.
        how: ``cold``, ``warm`` or ``call``.
        watch: a round during which the device throttled is dropped, and counted.

    Returns:
        As many rounds for each candidate, with one sample or more in each. A candidate may have more samples than the
        rule's ``max_samples``, while one beside it is so slow that it gives one in a round.

    Every second round is in reverse order, so that no candidate always follows the same other one.
    """
    take = {"cold": timer.cold_times, "warm": timer.warm_times, "call": timer.host_times}[how]
    found = {s.name: Samples() for s in candidates}
    started, dropped = time.perf_counter(), 0
    while True:
        order = list(candidates) if len(found[candidates[0].name].rounds) % 2 == 0 else list(reversed(candidates))
        round_: dict[str, list[float]] = {}
        for candidate in order:
            log(f"{candidate.name} {how}")
            with candidate.prepared():
                # The first sample includes the cost of the switch, and is dropped.
                (first,) = take(candidate, sets[candidate.name], 1)
                left = rule.max_samples - len(found[candidate.name].all)
                # One at least, also of a candidate that has enough while another, slower one has not: comparisons
                # are made round by round.
                count = max(1, min(_PER_ROUND, left)) if first < _SLOW_US else 1
                round_[candidate.name] = take(candidate, sets[candidate.name], count)
        spent = (time.perf_counter() - started) / len(candidates)
        if (reason := watch.throttled()) and dropped < 20:
            dropped += 1
            watch.discarded += _PER_ROUND * len(candidates)
            if f"throttled ({reason}): samples discarded" not in watch.notes:
                watch.notes.append(f"throttled ({reason}): samples discarded")
            continue
        for name, samples in round_.items():
            found[name].rounds.append(samples)
        if all(rule.enough(f.all, spent) for f in found.values()):
            return found
