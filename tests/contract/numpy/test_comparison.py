"""Results are compared in values, dtypes, shapes, classes and memory."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from opwright.contract.numpy.comparison import Outcome, difference, tolerance_of

Pair = namedtuple("Pair", "a b")
X = np.array([1.0, 2.0, np.nan])


@pytest.mark.parametrize(
    ("expected", "came"),
    [
        (X, X.copy()),
        (X, X * (1 + 1e-14)),
        (np.array([1e8, 1e-9]), np.array([1e8, 2e-9])),  # a sum in another order
        (np.array([1, 2]), np.array([1, 2])),
        ([X, {"a": 3}], [X.copy(), {"a": 3}]),
        (None, None),
        (np.float32(2), np.float32(2)),
        (np.array([np.inf, -np.inf]), np.array([np.inf, -np.inf])),
    ],
)
def test_the_same_is_the_same(expected: Any, came: Any) -> None:
    assert difference(expected, came) == ""


@pytest.mark.parametrize(
    ("expected", "came", "what"),
    [
        (X, X + 1e-6, r"the result\[0\] is 1.000001, NumPy's 1.0"),
        (X, X.astype(np.float32), "float32"),
        (X, X[None], r"\[1, 3\]"),
        (np.array([1, 2]), np.array([1, 3]), r"\[1\] is 3, NumPy's 2"),
        (np.array(3.0), np.float64(3.0), "the number"),
        (np.array([np.nan]), np.array([0.0]), "NumPy's nan"),
        (np.array([np.inf]), np.array([1e308]), "NumPy's inf"),
        ([X], (X,), "a tuple of 1, NumPy's a list of 1"),
        (Pair(1, 2), (1, 2), "tuple"),
        ({"a": 1}, {"a": 1, "b": 2}, "a dict of 2"),
        (3, 4, "is 4, NumPy's 3"),
        (3, 3.0, "is 3.0, NumPy's 3"),
        (None, X, "an array"),
    ],
)
def test_what_differs_is_told(expected: Any, came: Any, what: str) -> None:
    import re

    assert re.search(what, difference(expected, came))


def test_single_precision_may_be_asked_for() -> None:
    assert difference(X, X.astype(np.float32), single=True) == ""
    assert difference(X, X.astype(np.float16), single=True) != ""


def test_shared_memory_is_part_of_an_outcome() -> None:
    a = np.arange(6.0)
    assert Outcome.of(a[1:], [a]).shared != Outcome.of(a[1:].copy(), [a]).shared
    assert Outcome.of(a[1:], [a]).shared != Outcome.of(a[2:], [a]).shared
    assert Outcome.of((a[1:], a), []).together == [(1, 0)]
    assert Outcome.of((a[:2], a[2:]), []).together == []


def test_what_comes_from_coarse_floats_is_compared_with_their_tolerance() -> None:
    assert tolerance_of([X]) < tolerance_of([X, X.astype(np.float32)]) < tolerance_of([X.astype(np.float16)])
    assert difference(X, X * (1 + 1e-7)) != ""
    assert difference(X, X * (1 + 1e-7), coarsest=tolerance_of([X.astype(np.float32)])) == ""
    assert difference(X, X * 1.01, coarsest=tolerance_of([X.astype(np.float32)])) != ""
    assert tolerance_of([3, None]) == 0
