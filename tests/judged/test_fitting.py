"""Sizes as expressions of constants, and relations of constants."""

from __future__ import annotations

import pytest

from opwright.judged.inferring.fitting import fit, fit_alone
from opwright.judged.inferring.relations import relations_of


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([5, 5, 5], "5"),
        ([16, 32, 16], "n"),
        ([16, 16, 12], "m"),
        ([48, 96, 48], "3*n"),
        ([8, 16, 8], "n//2"),
        ([17, 33, 17], "n+1"),
        ([256, 512, 192], "n*m"),
        ([32, 48, 28], "n+m"),
        ([35, 67, 35], "2*n+3"),
        ([2, 4, 2], "n//7"),
        ([264, 520, 200], "n*m+8"),
        ([264, 520, 264], "16*n+8"),
        ([264, 520, 300], None),
        ([16, 31, 7], None),
    ],
)
def test_the_simplest_expression_that_gives_every_size(sizes: list[int], expected: str | None) -> None:
    constants = [{"n": 16, "m": 16}, {"n": 32, "m": 16}, {"n": 16, "m": 12}]
    assert fit(list(zip(constants, sizes, strict=True))) == expected


def test_a_size_may_be_raised_to_the_least() -> None:
    observed = [({"b": b, "n": n}, max(b * n + 8, 64)) for b, n in ((1, 2), (3, 4), (8, 9), (16, 5), (7, 30))]
    assert fit(observed) == "max(b*n+8,64)"
    assert fit([*observed, ({"b": 2, "n": 3}, 65)]) is None


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([1, 2, 2, 3], "(n+15)//16"), ([160, 170, 320, 330], "10*n"), ([5, 5, 5, 5], None), ([4, 3, 2, 1], None)],
)
def test_a_number_of_pages_is_an_expression_of_one_constant(sizes: list[int], expected: str | None) -> None:
    observed = [({"n": n, "m": 1}, size) for n, size in zip((16, 17, 32, 33), sizes, strict=True)]
    assert fit_alone(observed, "n") == expected


def test_relations_reject_what_the_reference_refuses() -> None:
    own = {"dim": 64, "heads": 8}
    tried = [({"dim": d, "heads": h}, d % h == 0) for d in (1, 2, 4, 6, 12, 16, 33) for h in (1, 2, 3, 5, 8)]
    assert relations_of(own, tried) == ["dim % heads == 0"]
    assert relations_of(own, [({"dim": 3, "heads": 5}, True)]) == []


def test_no_relation_is_invented_for_refusals_that_none_explains() -> None:
    tried = [({"n": n}, n not in (5, 11)) for n in range(1, 40)]
    assert relations_of({"n": 64}, tried) == []
