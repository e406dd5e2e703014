"""Python's numbers in functions that Numba compiles: what Python does where 64 bits do not suffice."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest

import opwright as ow
from opwright.backends.numpy import numba_compiled
from opwright.errors import CompileError

pytest.importorskip("numba", reason="Numba is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:divide by zero", "ignore:invalid value")


def compiled(function: Any) -> Any:
    return ow.compile_numpy(compiler="numba", mode="compiled")(function)


def factorial(n: Any) -> Any:
    result = 1
    for i in range(1, n + 1):
        result *= i
    return result


def fibonacci(n: Any) -> Any:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def sums_squares(n: Any) -> Any:
    total = 0
    for i in range(n):
        total += i * 10**12
    return total


def calls_a_helper(n: Any) -> Any:
    return multiplied(n, 3)


def multiplied(a: Any, b: Any) -> Any:
    return a * b


def mean(x: Any) -> Any:
    total = 0.0
    for i in range(x.shape[0]):
        total += x[i]
    return total / x.shape[0]


def counts(x: Any, out: Any) -> Any:
    for i in range(x.shape[0]):
        out[int(x[i])] += 1
    return out


def stores(x: Any, value: Any) -> Any:
    x[0] = 7
    x[1] = value
    return x


def logs(x: Any) -> Any:
    return [math.log(value) for value in x]


# A function, arguments that 64 bits suffice for, and those that they do not.
CASES: list[tuple[Any, tuple[Any, ...], list[tuple[Any, ...]]]] = [
    (factorial, (5,), [(30,)]),
    (fibonacci, (10,), [(200,)]),
    (sums_squares, (4,), [(40000,)]),
    (calls_a_helper, (4,), [(2**62,), (2**70,)]),
    (lambda n: 3**n, (3,), [(60,), (-1,)]),
    (lambda n: -n - 2**62, (3,), [(2**62 + 9,)]),
    (mean, (np.ones(3),), [(np.ones(0),)]),
    (counts, (np.zeros(2), np.zeros(3)), [(np.array([0, np.nan]), np.zeros(3)), (np.array([1, 1e30]), np.zeros(3))]),
    (stores, (np.zeros(2, np.int64), 2.7), [(np.zeros(2, np.int64), 1e30), (np.zeros(2, np.int64), math.nan)]),
    (logs, (np.ones(2),), [(np.array([1.0, 0.0]),), (np.array([1.0, -1.0]),)]),
    (lambda a, b: a / b, (1.0, 2.0), [(1.0, 0.0)]),
    (lambda a, b: a // b, (1.0, 2.0), [(1.0, 0.0)]),
    (lambda a, b: a % b, (1.0, 2.0), [(1.0, 0.0)]),
    (lambda a, b: a**b, (1.0, 2.0), [(0.0, -1.0), (-1.0, 0.5), (1e200, 3.0)]),
    (lambda a, b: divmod(a, b), (7, 2), [(7, 0)]),
    (lambda a: math.sqrt(a), (4.0,), [(-1.0,)]),
    (lambda a: math.exp(a), (1.0,), [(1000.0,)]),
    (lambda a: math.sin(a), (1.0,), [(math.inf,)]),
    (lambda a, b: math.pow(a, b), (2.0, 3.0), [(0.0, -1.0), (1e300, 2.0)]),
    (lambda a: int(a), (1.5,), [(1e30,), (math.nan,), (-math.inf,)]),
    (lambda a: round(a), (1.5,), [(1e30,)]),
    (lambda a: math.floor(a), (1.5,), [(1e30,), (math.inf,)]),
    (lambda a: np.int64(a), (1.5,), [(1e30,)]),
    (lambda a: np.uint8(a), (15,), [(256,), (-1,)]),
]


def outcome(function: Any, arguments: tuple[Any, ...]) -> Any:
    arguments = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in arguments)
    try:
        return repr(function(*arguments)), repr(arguments)
    except CompileError:
        raise
    except Exception as error:
        return type(error), str(error), repr(arguments)


# Numba compiles each function twice.
@pytest.mark.parametrize(("function", "usual", "others"), CASES)
def test_what_64_bits_do_not_hold_is_pythons(function: Any, usual: Any, others: Any) -> None:
    for arguments in others:
        ours = compiled(function)
        assert outcome(ours, usual) == outcome(function, usual)
        assert outcome(ours, usual) == outcome(function, usual)
        assert not ours.refused  # so far compiled code has run
        assert outcome(ours, arguments) == outcome(function, arguments)
        assert outcome(ours, usual) == outcome(function, usual)


def stencil(x: Any, out: Any, n: Any, times: Any) -> Any:
    count = 0
    for _ in range(times):
        for i in range(1, n - 1):
            for j in range(1, x.shape[1] - 1):
                out[i, j] = (x[i - 1, j] + x[i + 1, j] + x[i, (j * 2 + i) % 3]) / 3.0
                count += 1
    return count


def flat_indices(x: Any, width: Any, height: Any) -> Any:
    total = 0.0
    for i in range(height):
        for j in range(width):
            total += x[i * width + j] / (1.0 + x[0])
    return total


def mirrored(x: Any) -> Any:
    out = np.empty_like(x)
    for i in range(len(x) - 1, -1, -1):
        out[i] = x[len(x) - 1 - i] ** 2 + np.sqrt(x[i])
    return out


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (stencil, (np.ones((5, 5)), np.ones((5, 5)), 5, 2)),
        (flat_indices, (np.ones(12), 4, 3)),
        (mirrored, (np.ones(5),)),
    ],
)
def test_indices_and_counts_need_no_tests(function: Any, arguments: Any) -> None:
    ours = compiled(function)
    ours(*arguments)
    assert ours._ways["numba"]._integers == "refused"  # compiled as it is


def test_large_arguments_are_compiled_anew() -> None:
    ours = compiled(flat_index := lambda i, n: i * n + 1)
    assert ours(3, 4) == 13
    assert ours(2**40, 2**20) == 2**60 + 1
    assert not ours.refused
    assert ours(2**40, 2**40) == flat_index(2**40, 2**40)
    assert ours.refused


def test_what_was_written_before_an_error_is_as_numpy_leaves_it() -> None:
    ours = compiled(stores)
    for value in (2.0, 3.0):
        ours(np.zeros(2, np.int64), value)
    x = np.zeros(2, np.int64)
    with pytest.raises(OverflowError):
        ours(x, 1e30)
    assert x.tolist() == [7, 0]


def test_rounding_to_decimals_is_exact() -> None:
    def to_decimals(x: Any, n: Any) -> Any:
        return round(x, n)

    ours = compiled(to_decimals)
    assert ours(0.126, 2) == 0.13
    way = ours._ways["numba"]
    values = [*np.random.default_rng(0).normal(0, 100, 300).tolist(), 2.675, 0.125, 1e300, -0.001, 0.0, 1e15 + 0.3]
    stopped = 0
    for value in values:
        for n in (0, 1, 2, 5, 8):
            try:
                came = way(value, n)
            except numba_compiled.Stopped:
                stopped += 1
                continue
            assert repr(came) == repr(round(value, n)), (value, n)
    assert stopped < 30
    for value, n in ((2.675, 2), (math.nan, 1), (12.5, -1)):
        assert repr(compiled(to_decimals)(value, n)) == repr(round(value, n))


def test_sums_of_integers_are_refused() -> None:
    with pytest.raises(CompileError, match="sum of Python's integers"):
        compiled(lambda a, b: sum((a, b)))(1, 2)


def total(x: Any) -> Any:
    result = 0
    for value in x:
        result += value
    return result


def clamped(x: Any) -> Any:
    return max(0, x)


def ratio(x: Any, y: Any) -> Any:
    if y == 0:
        return 0
    return x / y


def both(x: Any) -> Any:
    result = 0
    for value in x:
        result += value
    return result, 1


@pytest.mark.parametrize(
    ("function", "usual", "integer"),
    [
        (total, (np.array([0.5, 0.2]),), (np.zeros(0),)),
        (clamped, (0.5,), (-1.5,)),
        (ratio, (1.0, 3.0), (1.0, 0)),
        (lambda x: x if x < 1 else True, (0.5,), (2.5,)),
    ],
)
def test_a_result_that_is_an_integer_on_one_way_is_one(function: Any, usual: Any, integer: Any) -> None:
    ours = compiled(function)
    assert outcome(ours, usual) == outcome(function, usual)
    assert outcome(ours, usual) == outcome(function, usual)
    assert not ours.refused
    assert outcome(ours, integer) == outcome(function, integer)


def power(base: Any, exponent: Any) -> Any:
    result = 1
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def test_other_types_of_arguments_may_need_other_rules() -> None:
    ours = compiled(power)
    for arguments in ((3, 5), (3, 50), (1.5, 3), (1.5, 0), (3, 5)):
        assert outcome(ours, arguments) == outcome(power, arguments)


def test_a_list_that_holds_an_integer_among_floats_is_refused() -> None:
    def filled(n: Any) -> Any:
        made = [0.5, 1.5]
        made[0] = n
        return made[0]

    with pytest.raises(CompileError, match="a list holds an integer among floats"):
        compiled(filled)(3)


def test_a_tuple_of_what_is_an_integer_on_one_way_is_refused() -> None:
    with pytest.raises(CompileError, match="an integer on one way and a float on another"):
        compiled(both)(np.array([0.5]))


@pytest.mark.exhaustive
@pytest.mark.slow  # Numba compiles each program for seconds
def test_drawn_numbers_are_the_same_or_refused() -> None:
    from tests.backends.numba_jit.counting import count
    from tests.backends.numba_jit.scalars import programs, verdict_of_numbers

    counted = count(programs(), verdict_of_numbers, 25, seed=3)
    assert counted["silently_different"] == []


def test_a_program_that_is_different_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.backends.numba_jit.scalars import verdict_of_numbers

    text = "import math\n\n\ndef program(a, n, u, v, x, k):\n    return math.log(u)\n"
    assert verdict_of_numbers(text) == "raises as NumPy"
    plain = functools.partial(numba_compiled.with_numba, integers="numba")
    monkeypatch.setattr(numba_compiled, "with_numba", lambda *a, **k: plain(*a))
    assert verdict_of_numbers(text).startswith("silently different")


def of_a_helper(n: Any) -> Any:
    return calls_a_helper(n) + multiplied(n, n)


def calls_itself(n: Any) -> Any:
    return 1 if n < 2 else n * calls_itself(n - 1)


def test_helpers_of_helpers_are_compiled() -> None:
    ours = compiled(of_a_helper)
    assert [ours(4), ours(5)] == [28, 40]
    assert ours(2**40) == of_a_helper(2**40)


def test_a_function_that_calls_itself_is_refused() -> None:
    with pytest.raises(CompileError, match="calls_itself"):
        compiled(calls_itself)(4)
