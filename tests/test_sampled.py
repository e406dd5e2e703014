"""Which tests of a family run by default."""

import pytest

from tests.sampled import quick, sampled


def marks_of(value):
    return [mark.name for mark in value.marks] if isinstance(value, type(pytest.param())) else []


def test_those_at_the_places_run_by_default_and_the_others_are_slow():
    values = quick([1, 2, 3, 4], 0, -1)
    assert values[0] == 1
    assert values[3] == 4
    assert [marks_of(value) for value in values] == [[], ["slow"], ["slow"], []]


def test_values_marks_and_names_stay():
    pair, named = quick([("x", 1), pytest.param("y", 2, marks=pytest.mark.gpu, id="named"), ("z", 3)], 2)[:2]
    assert pair.values == ("x", 1)
    assert named.values == ("y", 2)
    assert named.id == "named"
    assert marks_of(named) == ["gpu", "slow"]


def test_each_of_some_runs_with_the_slow_tests_and_the_others_on_request():
    values = sampled([("x", 1), ("y", 2), ("z", 3)], 2)
    assert values[0] == ("x", 1)
    assert values[1].values == (("y", 2),)
    assert sampled([1, pytest.param("y", 2)], 2)[1].values == ("y", 2)
    assert marks_of(values[1]) == ["exhaustive"]
    assert [marks_of(value) for value in quick([1, 2, 3, 4, 5], every=2)] == [[], ["slow"], [], ["slow"], []]
