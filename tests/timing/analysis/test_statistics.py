"""Medians, stopping, and verdicts, on samples with known results."""

import random

import pytest

from opwright.results import ComparisonVerdict
from opwright.timing.analysis.statistics import StopRule, compare, estimate, relative_spread


def noisy(true_us, n, seed, noise=0.02):
    """Times with a floor and a tail of interruptions, as real ones have."""
    generator = random.Random(seed)
    return [true_us * (1 + abs(generator.gauss(0, noise)) + (generator.random() < 0.03) * 0.8) for _ in range(n)]


def test_the_interval_holds_the_true_median_about_as_often_as_it_says():
    hits = 0
    for seed in range(200):
        generator = random.Random(seed)
        found = estimate([generator.gauss(100, 5) for _ in range(50)])
        hits += found.lo <= 100 <= found.hi
    assert hits >= 185  # 95 % of 200 is 190


def test_interruptions_hardly_move_the_median():
    assert estimate(noisy(100, 200, 0)).median == pytest.approx(101.3, abs=1)


def test_a_quiet_kernel_stops_at_the_minimum_and_a_noisy_one_goes_on():
    rule = StopRule(min_seconds=0)
    assert rule.enough([10.0] * 10, 0.1)
    assert not rule.enough([10.0] * 9, 0.1)
    growing = noisy(10, 12, 1, noise=0.5)
    assert relative_spread(growing) > 0.05
    assert not StopRule().enough([10.0] * 100, 0.2)  # not half a second yet


def test_measuring_ends_at_the_cap_whatever_the_noise():
    rule = StopRule()
    assert rule.enough(noisy(10, 2000, 1, noise=3), 1.0)
    assert rule.enough(noisy(10, 20, 1, noise=3), 5.0)


def test_a_spread_that_has_settled_ends_it():
    generator = random.Random(3)
    samples = [generator.choice((10.0, 13.0)) for _ in range(400)]
    assert StopRule().enough(samples, 1.0)


def in_rounds(true_us, seed, rounds=8, drift=0.0):
    return [noisy(true_us * (1 + drift * i), 20, seed * 100 + i) for i in range(rounds)]


def test_a_kernel_compared_with_itself_is_the_same():
    verdicts = [compare(in_rounds(50, seed), in_rounds(50, seed + 1000)).verdict for seed in range(40)]
    assert verdicts.count(ComparisonVerdict.SAME) >= 38
    assert ComparisonVerdict.FASTER not in verdicts
    assert ComparisonVerdict.SLOWER not in verdicts


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(0.9, ComparisonVerdict.FASTER), (1.1, ComparisonVerdict.SLOWER), (0.5, ComparisonVerdict.FASTER)],
)
def test_a_real_difference_is_seen(factor, verdict):
    assert [compare(in_rounds(50 * factor, s), in_rounds(50, s + 500)).verdict for s in range(10)] == [verdict] * 10


def test_drift_of_the_machine_cancels():
    found = compare(in_rounds(50, 1, drift=0.1), in_rounds(50, 2, drift=0.1))
    assert found.verdict is ComparisonVerdict.SAME


def test_noise_that_hides_the_answer_is_called_unclear():
    generator = random.Random(5)
    wild = lambda: [[50 * generator.uniform(0.5, 2) for _ in range(5)] for _ in range(4)]  # noqa: E731
    assert compare(wild(), wild()).verdict is ComparisonVerdict.UNCLEAR


def test_the_ratio_is_ours_by_theirs():
    assert compare([[10.0] * 5] * 4, [[20.0] * 5] * 4).ratio == 0.5
