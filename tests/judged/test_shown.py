"""Sizes that show a constant, as itself or as what follows from it."""

from __future__ import annotations

import pytest

from opwright.judged.shown import Shown


@pytest.mark.parametrize(
    ("text", "size", "usual", "values"),
    [
        ("n", 7, 3, {7}),
        ("8*n", 24, 1, {3}),
        ("8*n", 25, 1, {None}),
        ("2*n+1", 9, 1, {4}),
        ("n-2", 5, 1, {7}),
        ("n//4", 3, 13, {13}),
        ("(n+15)//16", 64, 1024, {1024}),
        ("(n+15)//16", 64, 1, set(range(1009, 1025))),
    ],
)
def test_a_size_gives_the_value_that_has_it(text: str, size: int, usual: int, values: set[int | None]) -> None:
    shown = Shown("n", text)
    assert shown.value(size, usual) in values
    assert Shown.at("n", shown.place(1, 2)) == shown
    assert shown.dim == ("n" if text == "n" else "n_size")


def test_the_values_of_several_sizes_are_multiples_and_others() -> None:
    shown = Shown("n", "(n+15)//16")
    values = [shown.value(size, 0) for size in range(1, 17)]
    assert any(value % 16 == 0 for value in values if value)
    assert len({value % 16 for value in values if value}) == 16
    assert [shown.size(value) for value in values if value] == list(range(1, 17))
