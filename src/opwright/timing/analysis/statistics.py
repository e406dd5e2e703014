"""Statistics of samples: medians with intervals, a stop rule, and comparisons of two kernels. Does not import torch.

Times of a kernel are not normally distributed (a floor, and a tail of interruptions), so everything is built
on medians and order statistics.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from opwright.results import Comparison, ComparisonVerdict, Estimate

__all__ = ["StopRule", "compare", "estimate", "relative_spread"]

# Below this difference two kernels count as the same: clocks and placement change single runs by as much.
SAME_WITHIN = 0.02


def estimate(samples_us: Sequence[float]) -> Estimate:
    """The median and its 95 % interval from order statistics (binomial, normal approximation)."""
    ordered = sorted(samples_us)
    n = len(ordered)
    reach = 0.98 * math.sqrt(n)  # 1.96 · √n / 2
    low = max(0, math.floor((n - 1) / 2 - reach))
    high = min(n - 1, math.ceil((n - 1) / 2 + reach))
    return Estimate(statistics.median(ordered), ordered[low], ordered[high], n)


def relative_spread(samples_us: Sequence[float]) -> float:
    """The interval of the median relative to the median."""
    found = estimate(samples_us)
    return (found.hi - found.lo) / found.median if found.median else math.inf


@dataclass
class StopRule:
    """When to stop, after nvbench's rule: at least ``min_samples`` and ``min_seconds``, until the
    spread is below ``spread`` or no longer decreases, at most ``max_samples`` and ``max_seconds``."""

    min_samples: int = 10
    min_seconds: float = 0.5
    spread: float = 0.005
    max_samples: int = 2000
    max_seconds: float = 5.0

    def enough(self, samples_us: Sequence[float], seconds: float) -> bool:
        """Whether to stop after these samples, taken in that time."""
        n = len(samples_us)
        if n >= self.max_samples or seconds >= self.max_seconds:
            return n >= 2
        if n < self.min_samples or seconds < self.min_seconds:
            return False
        now = relative_spread(samples_us)
        # No longer decreasing: a third more samples did not narrow it by a tenth.
        return now <= self.spread or now > 0.9 * relative_spread(samples_us[: max(self.min_samples, 3 * n // 4)])


def compare(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Comparison:
    """Compare two kernels by samples that were taken in turn.

    Args:
        ours, theirs: the same number of rounds of samples; a round of one was taken next to the same round
            of the other, so that drift (clocks, temperature, neighbours) cancels within a round.

    The ratio is the median over rounds of the ratio of the rounds' medians; the interval is a bootstrap over
    rounds and within them (percentile, 95 %, fixed seed). FASTER and SLOWER need the whole interval on one side
    of 1 and a difference above 2 %; SAME needs the whole interval within 5 %, the ratio within 2 %.
    """
    ratios = [_ratio(a, b) for a, b in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    lo, hi = _bootstrap(ours, theirs)
    lo, hi = min(lo, ratio), max(hi, ratio)
    if hi < 1 and ratio < 1 - SAME_WITHIN:
        verdict = ComparisonVerdict.FASTER
    elif lo > 1 and ratio > 1 + SAME_WITHIN:
        verdict = ComparisonVerdict.SLOWER
    elif abs(ratio - 1) <= SAME_WITHIN and lo > 0.95 and hi < 1.05:
        verdict = ComparisonVerdict.SAME
    else:
        verdict = ComparisonVerdict.UNCLEAR
    return Comparison(verdict, ratio, lo, hi)


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    below = statistics.median(theirs)
    return statistics.median(ours) / below if below > 0 else math.inf


def _bootstrap(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], draws: int = 400
) -> tuple[float, float]:
    generator = random.Random(0)
    rounds = range(len(ours))
    found = []
    for _ in range(draws):
        chosen = generator.choices(rounds, k=len(ours))
        found.append(
            statistics.median(
                _ratio(generator.choices(ours[i], k=len(ours[i])), generator.choices(theirs[i], k=len(theirs[i])))
                for i in chosen
            )
        )
    found.sort()
    return found[int(0.025 * draws)], found[int(0.975 * draws) - 1]
