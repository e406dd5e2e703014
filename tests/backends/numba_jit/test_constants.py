"""What a function reads from outside may change after Numba has compiled it."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

import opwright as ow
from opwright.backends.numba_jit.constants import Constants

pytest.importorskip("numba", reason="Numba is not installed")

FACTOR = 2.0
TABLE = np.arange(3.0)
MODULE = types.ModuleType("tests_settings")
MODULE.offset = 1.0  # type: ignore[attr-defined]


def compiled(function: Any) -> Any:
    return ow.compile_numpy(compiler="numba", mode="compiled")(function)


def scaled(x: Any) -> Any:
    return x * FACTOR


def weighted(x: Any) -> Any:
    total = 0.0
    for i in range(x.shape[0]):
        total += scaled(x[i]) * TABLE[i]
    return total


def shifted(x: Any) -> Any:
    return x + MODULE.offset


def test_compiled_code_follows_numbers_arrays_and_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, x = compiled(weighted), np.ones(3)
    for _ in range(2):
        assert ours(x) == 6
    monkeypatch.setitem(weighted.__globals__, "FACTOR", 3.0)
    assert [ours(x), ours(x)] == [9, 9]
    monkeypatch.setitem(weighted.__globals__, "TABLE", TABLE.copy())
    assert [ours(x), ours(x)] == [9, 9]
    weighted.__globals__["TABLE"][1] = 10  # the same array, other elements
    assert [ours(x), ours(x)] == [36, 36]
    monkeypatch.setitem(weighted.__globals__, "scaled", lambda value: -value)
    assert [ours(x), ours(x)] == [-12, -12]
    assert not ours.refused


def test_compiled_code_follows_attributes_of_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, x = compiled(shifted), np.ones(1)
    assert [ours(x).item(), ours(x).item()] == [2, 2]
    monkeypatch.setattr(MODULE, "offset", 4.0)
    assert [ours(x).item(), ours(x).item()] == [5, 5]


def test_compiled_code_follows_variables_of_a_function_around_it() -> None:
    factor = 2.0

    def inner(x: Any) -> Any:
        return x[0] * factor

    ours, x = compiled(inner), np.ones(1)
    assert [ours(x), ours(x)] == [2, 2]
    factor = 5.0
    assert [ours(x), ours(x)] == [5, 5]


def test_what_changes_in_every_call_is_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, x = compiled(scaled), np.ones(1)
    for factor in range(12):
        monkeypatch.setitem(scaled.__globals__, "FACTOR", float(factor))
        assert ours(x).item() == factor
    assert "has changed 9 times" in ours.refused["numba"]


def divides_after_a_write(x: Any) -> Any:
    x[0] += 1
    return 1.0 / FACTOR


@pytest.mark.parametrize("allow_breaks", [False, True])
def test_what_was_written_before_a_changed_value_stops_it_is_undone(
    allow_breaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ow.compile_numpy(compiler="numba", mode="compiled", allow_breaks=allow_breaks)(divides_after_a_write)
    x = np.zeros(2)
    for _ in range(3):
        ours(x)
    monkeypatch.setitem(divides_after_a_write.__globals__, "FACTOR", 0.0)
    with pytest.raises(ZeroDivisionError):
        ours(x)
    assert x.tolist() == [4, 0]


def test_equal_values_are_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Constants(weighted)
    monkeypatch.setitem(weighted.__globals__, "FACTOR", float("2.0"))
    assert known.are_current()
    monkeypatch.setitem(weighted.__globals__, "FACTOR", 2)  # an integer, with which Numba computes otherwise
    assert not known.are_current()


def test_names_that_are_gone_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Constants(scaled)
    monkeypatch.delitem(scaled.__globals__, "FACTOR")
    assert not known.are_current()
