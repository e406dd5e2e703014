"""Sizes as expressions of constants, and relations of constants."""

from __future__ import annotations

import pytest

from opwright.judged.inferring.fitting import fit
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
        ([16, 31, 7], None),
    ],
)
def test_the_simplest_expression_that_gives_every_size(sizes: list[int], expected: str | None) -> None:
    constants = [{"n": 16, "m": 16}, {"n": 32, "m": 16}, {"n": 16, "m": 12}]
    assert fit(list(zip(constants, sizes, strict=True))) == expected


def test_relations_reject_what_the_reference_refuses() -> None:
    own = {"dim": 64, "heads": 8}
    tried = [({"dim": d, "heads": h}, d % h == 0) for d in (1, 2, 4, 6, 12, 16, 33) for h in (1, 2, 3, 5, 8)]
    assert relations_of(own, tried) == ["dim % heads == 0"]
    assert relations_of(own, [({"dim": 3, "heads": 5}, True)]) == []


def test_no_relation_is_invented_for_refusals_that_none_explains() -> None:
    tried = [({"n": n}, n not in (5, 11)) for n in range(1, 40)]
    assert relations_of({"n": 64}, tried) == []
