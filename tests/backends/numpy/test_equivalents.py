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


def reductions(a: Any) -> Any:
    m = a.reshape(2, 3)
    return (
        np.add.reduce(m), np.multiply.reduce(m, axis=1, keepdims=True), np.maximum.reduce(m, axis=None),
        np.logical_or.reduce(a > 1), np.add.reduce(m.astype(np.int8), axis=None), np.add.accumulate(m),
        np.multiply.accumulate(m.astype(np.int16), axis=1),
    )  # fmt: skip


def counts_repeated_indices(a: Any) -> Any:
    order = np.argsort(a)
    i = np.array([0, 2, -1, 2])
    out, largest, whole, bytes_ = np.zeros(6), a.copy(), a.astype(np.int64), np.arange(6, dtype=np.uint8)
    np.add.at(out, i, a[:4])
    np.add.at(out, (order % 3,), 2)
    np.subtract.at(whole, i, 3)
    np.maximum.at(largest, i, a[2:])
    np.multiply.at(bytes_, i, 20)
    m = np.zeros((3, 4), np.float32)
    np.add.at(m, (slice(None), i), a[:3, None].astype(np.float32))
    np.minimum.at(m, (order % 3, order % 4), -1)
    np.add.at(m[::2], 1, 5)
    np.add.at(largest, a > 0, a[0])
    return out, largest, whole, bytes_, m


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


FUNCTIONS = [
    grids, sums_of_pairs, reductions, counts_repeated_indices, covariances, allocates, calls_a_helper,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
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


@pytest.mark.slow  # generates code
@pytest.mark.compiler
def test_generated_code_counts_repeated_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    compiled = ow.compile_numpy(mode="compiled")(counts_repeated_indices)
    for seed in range(3):
        a = np.random.default_rng(seed).standard_normal(6)
        assert not difference(copied(counts_repeated_indices(a)), copied(compiled(a)))


def into_bits(a: Any) -> None:
    np.add.at(a > 0, [0, 0], True)


def into_single(a: Any) -> Any:
    out = np.zeros(6, np.float32)
    np.add.at(out, [0, 0], a[:2])
    return out


def of_other_kind(a: Any) -> None:
    np.add.at(a.astype(np.int64), [0, 1], 1.5)


def by_powers(a: Any) -> None:
    np.power.at(a, [0, 0], 2.0)


def running_maximum(a: Any) -> Any:
    return np.maximum.accumulate(a)


def through_a_reversed_view(a: Any) -> Any:
    np.add.at(a[::-1], [0, 0], 1.0)
    return a


REFUSED = [into_bits, into_single, of_other_kind, by_powers, running_maximum, through_a_reversed_view]


@pytest.mark.parametrize("function", REFUSED)
def test_what_could_be_other_than_numpy_is_refused(function: Any) -> None:
    with pytest.raises(CompileError, match=rf"(?s)in {function.__name__} at .*test_equivalents.py:\d+") as refused:
        ow.compile_numpy(mode="compiled")(function)(np.ones(6))
    assert refused.value.fix


def test_errors_are_numpys() -> None:
    def adds(a: Any, i: Any, b: Any) -> None:
        np.add.at(a, i, b)

    compiled = ow.compile_numpy(mode="compiled")(adds)
    with pytest.raises(ValueError, match="broadcast"):
        compiled(np.ones(3), np.array([0, 1]), np.ones(3))
    compiled(np.ones(3), np.array([0, 1, 1]), np.ones(3))
    with pytest.raises(IndexError):
        compiled(np.ones(3), np.array([0, 1, 3]), np.ones(3))


def test_numbers_are_taken_as_numpy_takes_them_there() -> None:
    def each(a: Any, n: int) -> Any:
        np.add.at(a, [0, 0], n)
        np.multiply.at(a, [1, 1], n)
        np.subtract.at(a, a > 100, n)
        return a

    def largest(a: Any, n: int) -> Any:
        np.maximum.at(a, [0, 1], n)
        return a

    compiled = ow.compile_numpy(mode="compiled")(each)
    for n in (1, 7, -3, 300, 2):
        a = np.array([250, 2, 3], np.uint8)
        assert compiled(a.copy(), n).tolist() == each(a.copy(), n).tolist()
    compiled = ow.compile_numpy(mode="compiled")(largest)
    assert compiled(np.array([1, 5], np.uint8), 3).tolist() == [3, 5]
    for _ in range(2):
        with pytest.raises(CompileError, match="with which NumPy computes in another dtype"):
            compiled(np.array([250, 2], np.uint8), -1)
