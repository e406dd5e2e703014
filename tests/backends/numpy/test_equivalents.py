"""Names of NumPy that torch.compile does not trace, and that are compiled all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opwright as ow
from opwright.backends.numpy import tracing
from opwright.contract.numpy.comparison import copied, difference
from opwright.errors import CompileError

SCALE = 2.0
written = 0.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run traced graphs in Python: what is compared is what they compute."""
    monkeypatch.setattr(tracing, "generate", lambda graph, inputs: graph)


def grids(a: Any) -> Any:
    rows, columns = np.mgrid[0:2, 1:7:2]
    x, y = np.ogrid[:2, 0:1:3j]
    return rows * a[0] + columns, np.mgrid[2:5], x + y * a[1], np.mgrid[0:1:5j]


def sums_of_pairs(a: Any) -> Any:
    return np.add.outer(a, a[:2]), np.multiply.outer(a.reshape(2, 3), a), np.subtract(a, 1)


def covariances(a: Any) -> Any:
    m = a.reshape(2, 3)
    return np.cov(m), np.cov(m, rowvar=False), np.cov(m, bias=True), np.cov(a), np.cov(a[:3], a[3:]), np.cov(m, ddof=0)


def allocates(a: Any) -> Any:
    out = np.ndarray(a.shape, dtype=a.dtype)
    out[:] = a
    return out


def helper(a: Any) -> Any:
    return np.maximum.outer(a, a)


def calls_a_helper(a: Any) -> Any:
    return helper(a) * SCALE


@pytest.mark.parametrize("function", [grids, sums_of_pairs, covariances, allocates, calls_a_helper])
def test_they_give_what_numpy_gives(function: Any) -> None:
    compiled = ow.compile_numpy(mode="compiled")(function)
    for seed in range(3):
        a = np.random.default_rng(seed).standard_normal(6)
        assert not difference(copied(function(a)), copied(compiled(a)))


def test_a_global_that_changes_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = ow.compile_numpy(mode="compiled")(calls_a_helper)
    a = np.arange(3.0)
    for _ in range(3):
        assert compiled(a)[2, 2] == 4
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    for _ in range(3):
        assert compiled(a)[2, 2] == 10


def test_a_variable_around_the_function_that_changes_is_read_anew() -> None:
    factor = 1.0

    def scaled(a: Any) -> Any:
        return np.add.outer(a, a) * factor

    compiled = ow.compile_numpy(mode="compiled")(scaled)
    a = np.ones(2)
    for _ in range(3):
        assert compiled(a)[0, 0] == 2
    factor = 3.0
    assert compiled(a)[0, 0] == 6


def test_a_function_that_assigns_globals_is_not_copied() -> None:
    def assigns(a: Any) -> Any:
        global written
        written = 1.0
        return np.add.outer(a, a)

    with pytest.raises(CompileError):
        ow.compile_numpy(mode="compiled")(assigns)(np.ones(2))
    assert written == 1.0  # NumPy ran it
