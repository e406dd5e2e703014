"""Functions of NumPy for which Numba gives something else than NumPy for some values."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import opwright as ow
from opwright.backends.numpy import numba_compiled
from opwright.errors import CompileError
from tests.backends.numba_jit.numpy_calls import verdict_of
from tests.sampled import quick

pytest.importorskip("numba", reason="Numba is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DIFFERENT = [
    "np.median(x)", "np.floor_divide(x, 0.3)", "np.power(x, 0.5)", "np.histogram(x, 3)", "np.bincount(k)",
    "np.arange(0.0, x[0], 0.25)", "np.linalg.norm(x)", "sum(x)", "k[0] ** 2",
]  # fmt: skip
SAME = ["np.max(x)", "np.histogram(x, 3, (0.0, 1.0))", "np.argsort(x)", "round(x[0], 2)", "np.sum(k)", "k ** 2"]


# Numba compiles each for seconds.
@pytest.mark.parametrize("expression", quick([*DIFFERENT, *SAME], every=2))
def test_unusual_values_give_what_numpy_gives(expression: str) -> None:
    assert verdict_of(expression) == "same"


@pytest.mark.parametrize("dtype", quick([np.int32, np.uint8], 1))
@pytest.mark.parametrize("function", [np.bincount, np.median, lambda k: np.floor_divide(k, k + k)])
def test_narrow_integers_are_compiled(function: Any, dtype: Any) -> None:
    def called(k: Any) -> Any:
        return function(k)

    ours, k = ow.compile_numpy(compiler="numba", mode="compiled")(called), np.array([3, 1, 2], dtype)
    assert [repr(ours(k)), repr(ours(k)), ours.refused] == [repr(called(k)), repr(called(k)), {}]


@pytest.mark.parametrize("expression", ["np.bincount(k)", "np.median(x)"])
def test_without_these_rules_they_are_different(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = functools.partial(numba_compiled.with_numba, integers="numba")
    monkeypatch.setattr(numba_compiled, "with_numba", lambda *a, **k: plain(*a))
    assert verdict_of(expression) not in ("same", "refused")


# Numba compiles a partition for four seconds.
@pytest.mark.parametrize(
    ("function", "why"),
    quick(
        [
            (lambda x, k: np.power(k, 2), "power of int64 gives something else"),
            (lambda x, k: k**k, "powers of integers in float64"),
            (lambda x, k: np.partition(x, 1), "partition of float64 gives something else"),
        ],
        0,
        1,
    ),
)
def test_some_are_refused(function: Any, why: str) -> None:
    with pytest.raises(CompileError, match=why):
        ow.compile_numpy(compiler="numba", mode="compiled")(function)(np.array([0.3, 0.7]), np.array([3, 2]))
