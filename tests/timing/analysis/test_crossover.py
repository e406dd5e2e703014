"""From samples to ranges: what is surely faster moves the border, and nothing else does. And how long is left."""

import pytest

from opwright.results import Crossover, SizeRange
from opwright.timing.analysis.crossover import Point, cost_rounds, ranges
from opwright.timing.remaining import TimeLeft


def rounds(us, spread=0.0, count=10):
    """Rounds of samples around a time; ``spread`` makes them too noisy to compare."""
    return [[us * (1 + spread * ((i * 7 + j * 3) % 5 - 2)) for j in range(5)] for i in range(count)]


def point(elements, times, **options):
    return Point(elements, "float32", {k: rounds(us, **options) for k, us in times.items()})


def test_the_border_lies_between_the_sizes_where_the_winner_changes():
    points = [point(1 << 10, {"a": 10, "b": 5}), point(1 << 14, {"a": 10, "b": 50}), point(1 << 12, {"a": 10, "b": 20})]
    assert ranges(points, ["a", "b"]) == (SizeRange(0, 1 << 11, "b"), SizeRange(1 << 11, None, "a"))


@pytest.mark.parametrize("second", [10.0, 10.1, 9.9])
def test_what_is_the_same_does_not_flip(second):
    points = [point(n, {"a": 10.0, "b": second}) for n in (1, 100, 10_000)]
    assert ranges(points, ["a", "b"]) == (SizeRange(0, None, "a"),)
    assert ranges(points, ["b", "a"]) == (SizeRange(0, None, "b"),)


def test_the_one_that_holds_keeps_its_place_where_others_are_the_same():
    points = [point(10, {"a": 10, "b": 5}), point(1000, {"a": 10, "b": 10.05})]
    assert ranges(points, ["a", "b"]) == (SizeRange(0, None, "b"),)


def test_what_is_unclear_does_not_flip():
    points = [Point(10, "float32", {"a": rounds(10, spread=0.2), "b": rounds(9.5, spread=0.2)})]
    assert ranges(points, ["a", "b"]) == (SizeRange(0, None, "a"),)


def test_a_kernel_that_wins_one_case_and_loses_another_of_the_same_size_does_not_win():
    points = [point(100, {"a": 10, "b": 5}), point(100, {"a": 10, "b": 20})]
    assert ranges(points, ["a", "b"]) == (SizeRange(0, None, "a"),)
    assert ranges([points[0], point(100, {"a": 10, "b": 10})], ["a", "b"]) == (SizeRange(0, None, "b"),)


def test_a_kernel_that_ran_at_some_sizes_only_holds_only_there():
    points = [point(10, {"a": 10, "b": 5}), point(1000, {"a": 10})]
    assert [i.kernel for i in ranges(points, ["a", "b"])] == ["b", "a"]
    assert ranges([], ["a"]) == ()


def test_the_third_kernel_may_be_the_fastest():
    assert ranges([point(10, {"a": 10, "b": 8, "c": 5})], ["a", "b", "c"]) == (SizeRange(0, None, "c"),)


def test_adjacent_sizes_still_make_two_intervals():
    found = ranges([point(5, {"a": 10, "b": 5}), point(6, {"a": 5, "b": 10})], ["a", "b"])
    assert found == (SizeRange(0, 6, "b"), SizeRange(6, None, "a"))


def test_a_call_costs_what_takes_longer():
    short, long = rounds(2), rounds(9)
    assert cost_rounds(short, long) is long
    assert cost_rounds(long, short) is long
    assert cost_rounds(short, None) is short


def test_intervals_are_said_in_words():
    output = [str(SizeRange(0, None, "a")), str(SizeRange(0, 700, "a")), str(SizeRange(700, 1 << 20, "a"))]
    assert output == ["at every size", "below 700 elements", "from 700, below 2^20 elements"]
    assert str(SizeRange(1 << 20, None, "a")) == "from 2^20 elements"
    assert Crossover("a::b", "cpu", "x", "float32", ()).stored is False


def test_the_time_left_is_unknown_until_something_was_measured_and_then_an_estimate():
    now = [0.0]
    left = TimeLeft(planned=12, clock=lambda: now[0])
    assert str(left) == "time left unknown"
    now[0] = 2.0
    left.add_done(2)
    assert str(left) == "time left unknown"
    now[0] = 4.0
    left.add_done(2)
    assert str(left) == "about 8 s left"
    left.reached(10)  # passes of a refused kernel took no time and do not count
    assert str(left) == "about 2 s left"
    left.reached(12)
    assert str(left) == "nearly done"
    long = TimeLeft(planned=1000, clock=lambda: now[0])
    now[0] += 10
    long.add_done(10)
    assert str(long) == "about 16 min left"
    now[0] += 2000
    assert str(long).endswith("h left")
