"""Calls of functions that Numba compiles, one after the other and side by side: kinds of arguments, lists, threads."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest

from opwright.errors import CompileError
from tests.backends.numba_jit.test_bounds import compiled

pytest.importorskip("numba", reason="Numba is not installed")


def total_of(x: Any) -> Any:
    total = 0
    for value in x:
        total += value
    return total


def doubled(x: Any) -> Any:
    return [value * 2 for value in x]


def listed(x: Any) -> Any:
    return [value + 1 for value in x], len(x)


@pytest.mark.parametrize("function", [total_of, doubled, listed])
@pytest.mark.parametrize("lengths", [(2, 0, 3), (0, 2, 0, 4)])
def test_no_elements_leave_what_python_leaves(function: Any, lengths: Any) -> None:
    fast = compiled(function)
    for length in lengths:
        came, expected = fast(np.arange(length) + 1), function(np.arange(length) + 1)
        assert repr(came) == repr(expected)


def halves(n: Any) -> Any:
    return [i * 0.5 for i in range(n)]


def test_a_list_that_was_empty_at_the_first_call_is_compared_at_the_next() -> None:
    fast = compiled(halves)
    assert [fast(n) for n in (0, 3, 0, 2)] == [halves(n) for n in (0, 3, 0, 2)]


def stores(x: Any, value: Any) -> Any:
    x[0] = value
    return x


@pytest.mark.parametrize("value", [300, -1])
def test_python_integers_that_an_array_does_not_hold_are_errors(value: int) -> None:
    fast, x = compiled(stores), np.zeros(2, np.uint8)
    fast(x, 3)
    with pytest.raises(OverflowError, match="out of bounds"):
        fast(x, value)
    assert x.tolist() == [3, 0]


def catches(n: Any) -> Any:
    try:
        return n * n * n
    except Exception:
        return -1


def applied(function: Any, n: Any) -> Any:
    return function(n)


def passes_a_function_on(n: Any) -> Any:
    return applied(lambda value: value * value * value, n)


@pytest.mark.parametrize(
    ("function", "argument", "why"),
    [
        (catches, 3, "catches errors"),
        (passes_a_function_on, 3, "passed on"),
    ],
)
def test_what_cannot_be_followed_is_refused(function: Any, argument: Any, why: str) -> None:
    with pytest.raises(CompileError, match=why):
        compiled(function)(argument)


def catches_nothing_that_stops(x: Any) -> Any:
    try:
        return x[0] + 1.0
    except Exception:
        return -1.0


def calls_a_function_within(n: Any) -> Any:
    def cubed(value: Any) -> Any:
        return value * value * value

    return cubed(n) + cubed(n + 1)


def test_errors_of_floats_may_be_caught_and_functions_within_called() -> None:
    fast = compiled(catches_nothing_that_stops)
    assert [fast(np.ones(2)), fast(np.ones(1))] == [2.0, 2.0]
    fast = compiled(calls_a_function_within)
    assert [fast(n) for n in (3, 2**30)] == [calls_a_function_within(n) for n in (3, 2**30)]


def multiplied(a: Any, n: Any) -> Any:
    total = 0
    for i in range(n):
        total = total + a * i
    return total


def test_a_kind_that_is_refused_after_a_mixture_of_integers_and_floats_is_refused_at_once() -> None:
    fast = compiled(multiplied)
    for a in (3, 3.5):
        assert fast(a, 5) == multiplied(a, 5)
    with pytest.raises(CompileError, match="int32"):
        fast(np.int32(3), 5)
    assert fast(3, 5) == multiplied(3, 5)


SIGN = 0.0


def signed(x: Any) -> Any:
    return math.copysign(x, SIGN)


def test_minus_zero_is_another_constant_than_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = compiled(signed)
    assert fast(2.0) == 2.0
    monkeypatch.setitem(globals(), "SIGN", -0.0)
    assert fast(2.0) == -2.0


def test_threads_call_one_function_with_arguments_of_several_kinds() -> None:
    calls = [(3, 5), (3.5, 5), (2**40, 5), (2**62, 7), (1, 0), (0.5, 3)]
    fast, wrong = compiled(multiplied), []
    expected = [repr(multiplied(*arguments)) for arguments in calls]

    def work(start: int) -> None:
        for i in range(40):
            k = (start + i * (start + 1)) % len(calls)
            try:
                came = repr(fast(*calls[k]))
            except Exception as error:
                came = repr(error)
            if came != expected[k]:
                wrong.append((calls[k], came))

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def pairs(x: Any) -> Any:
    return [(value, i) for i, value in enumerate(x)]


def test_numbers_in_lists_of_any_length_have_numpys_classes() -> None:
    fast = compiled(pairs)
    for length in (2, 4, 1):
        assert repr(fast(np.arange(length) * 0.5)) == repr(pairs(np.arange(length) * 0.5))


def scaled(x: Any, *, scale: Any = 2.0, shift: Any) -> Any:
    total = 0.0
    for value in x:
        total += value * scale + shift
    return total


def test_parameters_that_are_passed_by_name_only() -> None:
    fast, x = compiled(scaled), np.linspace(1.0, 2.0, 5)
    for names in ({"shift": 1.0}, {"shift": 2.0, "scale": 3.0}, {"scale": 5.0, "shift": 1}):
        for _ in range(2):
            assert fast(x, **names) == scaled(x, **names)
    with pytest.raises(TypeError, match="shift"):
        fast(x)


def counted_from(x: Any) -> Any:
    total = sum([1.0, 2.0], start=3.0)
    for i, value in enumerate(x, start=10):
        total += i * round(value, ndigits=1)
    return total


def test_builtins_whose_arguments_are_named() -> None:
    fast, x = compiled(counted_from), np.linspace(1.0, 2.0, 5)
    assert [fast(x), fast(x)] == [counted_from(x)] * 2


def hashed(x: Any) -> Any:
    value = 14695981039346656037
    for each in x:
        value = ((value ^ int(each)) * 1099511628211) % 2**64
    return value


def up_to(x: Any) -> Any:
    total = 0
    for each in np.arange(x[0]):
        total += each
    return total


@pytest.mark.parametrize(
    ("function", "why"), [(hashed, "the integer 18446744073709551616 has more than 64 bits"), (up_to, "cannot compile")]
)
def test_an_error_of_the_compiler_is_not_the_functions(function: Any, why: str) -> None:
    with pytest.raises(CompileError, match=why) as caught:
        compiled(function)(np.arange(3, 9, dtype=np.uint8))
    assert "it raised" not in str(caught.value)
