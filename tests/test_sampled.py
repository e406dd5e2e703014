"""Which tests of a family run by default."""

import pytest

from tests import REPOSITORY
from tests.sampled import half_of, quick, sampled


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


def test_each_half_has_whole_files_and_about_as_many():
    files = [str(file.relative_to(REPOSITORY)) for file in (REPOSITORY / "tests").rglob("test_*.py")]
    halves = [half_of(file) for file in files]
    assert [half_of(f"{file}::test_it[1]") for file in files] == halves
    assert 0.4 < sum(halves) / len(halves) < 0.6
