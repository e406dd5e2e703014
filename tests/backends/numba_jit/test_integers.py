"""Integers other than int64 in functions that Numba compiles: NumPy's dtypes and values, or refused."""

from __future__ import annotations

import functools
import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import opwright as ow
from opwright.backends.numpy import numba_compiled
from opwright.errors import CompileError
from tests.sampled import quick, sampled

hypothesis = pytest.importorskip("hypothesis")
numba = pytest.importorskip("numba", reason="Numba is not installed")

NARROW = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.uint64)
# NumPy has no bits of uint64 and a signed integer together.
PAIRS = [
    pair
    for pair in itertools.product(NARROW, repeat=2)
    if np.uint64 not in pair or not any(np.issubdtype(dtype, np.signedinteger) for dtype in pair)
]
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:divide by zero")


def compiled(function: Any) -> Any:
    return ow.compile_numpy(compiler="numba", mode="compiled")(function)


def extremes(dtype: Any) -> np.ndarray[Any, Any]:
    limits = np.iinfo(dtype)
    return np.array([limits.min, limits.max, limits.max // 2 + 1, 0, 1, 2, 7, 100], dtype)


def each_operation(a: Any, b: Any) -> Any:
    return (
        np.full(1, a + b), np.full(1, a - b), np.full(1, a * b), np.full(1, a // b), np.full(1, a % b),
        np.full(1, a & b), np.full(1, a | b), np.full(1, a ^ b), np.full(1, a / b), np.full(1, a << b),
        np.full(1, a >> b), np.full(1, -a), np.full(1, ~a), np.full(1, a < b), np.full(1, +b),
    )  # fmt: skip


def of_elements(x: Any, y: Any) -> Any:
    return each_operation(x[0], y[0])


def of_a_literal(x: Any) -> Any:
    a = x[0]
    return (
        np.full(1, a + 3), np.full(1, 3 - a), np.full(1, a * 5), np.full(1, 7 // a), np.full(1, a % 3),
        np.full(1, a << 2), np.full(1, a >> 9 % 8), np.full(1, a**3), np.full(1, a & 0x0F), np.full(1, a / 2), x + 3,
        3 - x, x * 5, x // 2, x | 1, x**2,
    )  # fmt: skip


def of_an_argument(x: Any, n: Any) -> Any:
    a = x[0]
    return np.full(1, a + n), np.full(1, n - a), np.full(1, a * n), x + n, n * x, np.full(1, a > n)


def assert_same(came: Any, expected: Any) -> None:
    for i, (ours, numpys) in enumerate(zip(came, expected, strict=True)):
        assert ours.dtype == numpys.dtype, f"result {i}: {ours.dtype}, NumPy's {numpys.dtype}"
        np.testing.assert_array_equal(ours, numpys, err_msg=f"result {i}")


# Numba compiles each pair of dtypes for some seconds.
@pytest.mark.slow
@pytest.mark.parametrize(("left", "right"), sampled([pytest.param(*pair) for pair in PAIRS], 5))
def test_two_elements_give_what_numpy_gives(left: Any, right: Any) -> None:
    ours = compiled(of_elements)
    for a, b in itertools.product(extremes(left), extremes(right)):
        x, y = np.array([a]), np.array([b])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = of_elements(x, y)
        assert_same(ours(x, y), expected)


# Numba compiles each for more than a second.
@pytest.mark.parametrize("dtype", quick([np.int8, np.uint64], 1))
def test_a_literal_takes_the_dtype_of_what_it_meets(dtype: Any) -> None:
    ours = compiled(of_a_literal)
    for a in extremes(dtype):
        x = np.array([a, 1], dtype)
        assert_same(ours(x), of_a_literal(x))


def test_an_argument_that_does_not_fit_is_numpys_error() -> None:
    ours = compiled(of_an_argument)
    x = extremes(np.uint32)
    assert_same(ours(x, 5), of_an_argument(x, 5))
    with pytest.raises(OverflowError):
        ours(x, 2**40)
    assert_same(ours(x, 7), of_an_argument(x, 7))
    with pytest.raises(OverflowError):
        ours(x, -(2**40))


def count_up(out: Any, x: Any, n: Any) -> Any:
    for i in range(x.shape[0]):
        out[0] += 1
        out[i] = x[i] + n - n
    out[1] = n
    return out.sum()


def test_what_was_written_before_a_number_did_not_fit_is_undone() -> None:
    x = np.arange(4, dtype=np.int16)
    ours = compiled(count_up)
    for n in (1, 2, 40_000, 3, -70_000):  # 40,000 fits neither into x's dtype nor into out's
        out, expected = np.zeros(4, np.int16), np.zeros(4, np.int16)
        try:
            numpys: Any = count_up(expected, x, n)
        except OverflowError as error:
            numpys = str(error)
            with pytest.raises(OverflowError):
                ours(out, x, n)
        else:
            assert ours(out, x, n) == numpys
        np.testing.assert_array_equal(out, expected)


def adds_and_stops(x: Any, n: Any) -> Any:
    x += 1
    return x[0] + n


def writes_by_a_function_and_stops(x: Any, n: Any) -> Any:
    np.add(x, x, x)
    return x[0] + n


def add_to_the_first(x: Any) -> None:
    x[0] += 1


def writes_in_a_helper_and_stops(x: Any, n: Any) -> Any:
    add_to_the_first(x)
    return x[0] + n


@pytest.mark.parametrize(
    "function", [adds_and_stops, writes_by_a_function_and_stops, writes_in_a_helper_and_stops], ids=lambda f: f.__name__
)
def test_writes_of_each_kind_are_undone(function: Any) -> None:
    ours = compiled(function)
    for n in (1, 2, 1000):
        x, expected = np.ones(2, np.int8), np.ones(2, np.int8)
        if n == 1000:
            with pytest.raises(OverflowError):
                function(expected, n)
            with pytest.raises(OverflowError):
                ours(x, n)
        else:
            assert ours(x, n) == function(expected, n)
        np.testing.assert_array_equal(x, expected)


def wide_sum(x: Any) -> Any:
    return x.sum(), x.max(), x.mean(), np.sum(x), np.minimum(x, x), np.abs(x), max(x[0], x[1]), x.astype(np.int64) + 1


def test_functions_whose_dtypes_are_numpys_are_compiled() -> None:
    x = np.array([100, 100, 27], np.int8)
    for ours, numpys in zip(compiled(wide_sum)(x), wide_sum(x), strict=True):
        np.testing.assert_array_equal(ours, numpys)


def steps(first: Any, second: Any) -> int:
    return 1 if first + second == 3 else 0


def table(n: Any, x: Any) -> Any:
    out = np.zeros((n, n), np.int32)
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            out[i, j] = max(out[i, j], out[i, j - 1])
            if i + 1 < n:
                out[i, j] = max(out[i, j], out[i + 1, j - 1] + steps(x[i], x[j]))
    return out


def checksum(data: Any, poly: Any = 0x8408) -> Any:
    crc = 0xFFFF
    for b in data:
        byte = 0xFF & b
        for _ in range(8):
            if (crc & 1) ^ (byte & 1):
                crc = (crc >> 1) ^ poly
            else:
                crc >>= 1
            byte >>= 1
    return crc


def gather(rows: Any, columns: Any, x: Any) -> Any:
    out = np.empty(rows.size - 1, x.dtype)
    for i in range(rows.size - 1):
        out[i] = x[columns[rows[i] : rows[i + 1]]].sum()
    return out


def test_dynamic_programs_checksums_and_sparse_matrices_are_compiled() -> None:
    generator = np.random.default_rng(0)
    x = generator.integers(0, 4, 20).astype(np.int32)
    np.testing.assert_array_equal(compiled(table)(20, x), table(20, x))
    data = generator.integers(0, 256, 100).astype(np.uint8)
    assert compiled(checksum)(data) == checksum(data)
    rows, columns = np.array([0, 2, 2, 5], np.uint32), np.array([1, 3, 0, 2, 2], np.uint32)
    values = generator.standard_normal(4)
    np.testing.assert_allclose(compiled(gather)(rows, columns, values), gather(rows, columns, values))


def accumulates(x: Any) -> Any:
    total = 0  # a Python integer first, then an int8
    for i in range(x.shape[0]):
        total = total + x[i]
    return total


def meets_a_wide_element(x: Any, y: Any) -> Any:
    return x[0] + y[0]


def either(x: Any, wide: Any) -> Any:
    value = x[0] if wide else 5
    return np.full(1, value)


def meets_the_elements_of_a_loop(x: Any, y: Any) -> Any:
    out = np.zeros(1, np.int64)
    for value in y:  # of int64, and no Python integer
        out[0] = x[0] + value
    return out


def powers(x: Any, n: Any) -> Any:
    return x[0] ** n


def adds_truth_values(x: Any) -> Any:
    return np.full(1, x[0] + x[1])


def negates_a_truth_value(x: Any, y: Any) -> Any:
    return np.full(1, ~(x[0] > 3) + y[0])


REFUSED = [
    (accumulates, (np.full(3, 100, np.int8),), "may be a Python integer"),
    (meets_a_wide_element, (np.ones(1, np.int8), np.ones(1, np.int64)), "may be a Python integer"),
    (meets_the_elements_of_a_loop, (np.full(1, 100, np.int8), np.full(2, 100)), "may be a Python integer"),
    (either, (np.ones(1, np.int8), True), "which Numba makes int64"),
    (powers, (np.ones(1, np.int32), 3), "a power that may be negative"),
    (adds_truth_values, (np.zeros(2, bool),), "truth values as with integers"),
    (negates_a_truth_value, (np.ones(1), np.ones(1, np.int8)), "truth values as with integers"),
]


@pytest.mark.parametrize(("function", "arguments", "why"), REFUSED, ids=[f.__name__ for f, *_ in REFUSED])
def test_what_may_differ_is_refused(function: Any, arguments: Any, why: str) -> None:
    with pytest.raises(CompileError, match=why):
        compiled(function)(*arguments)


def converts(x: Any, n: Any) -> Any:
    return np.uint8(n) + x[0]


def takes_an_integer_of_64_bits(x: Any) -> Any:
    return int(x[0]) + 1


def test_numbers_are_converted_where_they_fit_and_numpy_runs_the_others() -> None:
    x, y = np.full(1, 5, np.uint8), np.full(1, 5, np.uint64)
    ours, theirs = compiled(converts), compiled(takes_an_integer_of_64_bits)
    assert [ours(x, 3), ours(x, 3).dtype] == [8, np.uint8]
    assert [theirs(y), theirs.refused] == [6, {}]
    with pytest.raises(OverflowError):
        ours(x, 300)
    assert theirs(np.full(1, 2**64 - 1, np.uint64)) == 2**64


def test_a_number_of_numpy_as_an_argument_is_not_taken_for_pythons() -> None:
    ours = compiled(of_an_argument)
    x = np.ones(2, np.int8)
    ours(x, 5)
    with pytest.raises(CompileError, match=r"takes np.int64\(5\) for a Python integer"):
        ours(x, np.int64(5))


def made_inside(n: Any) -> Any:
    x = np.full(n, 100, np.int8)
    return x + x, np.full(1, x[0] + x[1])


def test_narrow_arrays_that_a_function_makes_follow_the_same_rules() -> None:
    assert_same(compiled(made_inside)(3), made_inside(3))


def test_ndarray_makes_an_array() -> None:
    def filled(n: Any) -> Any:
        out = np.ndarray((n, 2), dtype=np.float32)
        out[:] = 3
        return out

    np.testing.assert_array_equal(compiled(filled)(4), filled(4))


def divides(x: Any, n: Any) -> Any:
    return x[0] + 7 // n + (8 >> n)


def test_python_integers_are_divided_and_shifted_as_python_does() -> None:
    ours = compiled(divides)
    x = np.ones(1, np.int64)
    assert ours(x, 2) == divides(x, 2)
    assert ours(x, 70) == divides(x, 70)
    for n, error in ((0, ZeroDivisionError), (-1, ValueError)):
        with pytest.raises(error):
            ours(x, n)


def of_wide_and_narrow(x: Any, y: Any) -> Any:
    for i in range(x.shape[0]):
        x[i] = y[i]
        y[i] = x[i]
    x += y
    return x


@pytest.mark.parametrize("dtypes", [(np.int16, np.uint64), (np.uint64, np.int64), (np.int8, np.int64)], ids=str)
def test_numbers_are_stored_as_numpy_stores_them(dtypes: Any) -> None:
    ours = compiled(of_wide_and_narrow)
    for values in ([1, 2], [2**62, 200], [-5, 7], [2**64 - 1, 3]):
        try:
            y = np.array(values).astype(dtypes[1])
            x = np.zeros(2, dtypes[0])
            expected = of_wide_and_narrow(x.copy(), y.copy())
        except (OverflowError, TypeError) as error:
            with pytest.raises(type(error)):
                ours(x.copy(), y.copy())
        else:
            np.testing.assert_array_equal(ours(x.copy(), y.copy()), expected)


@pytest.mark.slow  # Numba compiles each program for seconds
def test_drawn_loops_are_the_same_or_refused() -> None:
    from tests.backends.numba_jit.loops import loops, verdict_of_a_loop

    @hypothesis.settings(
        max_examples=25,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(loops())
    def run(drawn: tuple[str, str, str]) -> None:
        assert verdict_of_a_loop(*drawn) in ("same", "raises as NumPy", "refused"), drawn

    run()


def test_a_loop_that_is_different_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.backends.numba_jit.loops import verdict_of_a_loop

    text = (
        "def program(x, y, n):\n    for i in range(1, 6):\n        x[i] = (x[i] * y[i]) >> 9\n    return x + y, x[2]\n"
    )
    assert verdict_of_a_loop(text, "int8", "int8") == "same"
    plain = functools.partial(numba_compiled.with_numba, integers="numba")
    monkeypatch.setattr(numba_compiled, "with_numba", lambda *a, **k: plain(*a))
    assert verdict_of_a_loop(text, "int8", "int8").startswith("silently different")


def test_powers_of_truth_values_are_refused() -> None:
    compiled = ow.compile_numpy(compiler="numba", mode="compiled")(lambda b, n: b**n)
    for n in (3, 2):
        with pytest.raises(CompileError, match="Numba cannot compile it"):
            compiled(np.array([True, False]), n)


def test_the_order_of_types_does_not_matter() -> None:
    def divide(x, y):
        for i in range(len(x)):
            x[i] = x[i] // y[i]
        return x

    compiled = ow.compile_numpy(compiler="numba", mode="compiled")(divide)
    for kind in (float, np.int32, float, np.int32):
        x, y = np.array([7, -7], kind), np.array([2, 2], kind)
        assert compiled(x.copy(), y).tolist() == divide(x.copy(), y).tolist()


def test_objects_of_numbas_own_are_refused() -> None:
    from numba.typed import List

    def first(x, values):
        values[0] += 1
        return x[0] + values[0]

    with pytest.raises(CompileError, match="an object of Numba's"):
        ow.compile_numpy(compiler="numba", mode="compiled")(first)(np.ones(2), List([1, 2]))
