"""Idioms of NumPy code, each a function and the arguments of two calls: compiled, it is the same as NumPy or refused.

``IDIOMS`` has for each name the function, the argument makers (one per call), and "same" or "refused".
"""

from __future__ import annotations

import inspect
import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Idiom(NamedTuple):
    """``arguments(0)`` and ``arguments(1)`` are those of a first and a second call of one form."""

    function: Callable[..., Any]
    arguments: Callable[[int], tuple[Any, ...]]
    expected: str


def _floats(call: int) -> tuple[Any, ...]:
    return (np.array([3.0, 1.0, 2.0, 5.0]) if call == 0 else np.array([-1.5, np.nan, 0.0, 7.0]),)


def _integers(call: int) -> tuple[Any, ...]:
    return (np.array([3, 1, 2, 5]) if call == 0 else np.array([0, -4, 9, 2]),)


def _matrix(call: int) -> tuple[Any, ...]:
    return (np.arange(12.0).reshape(3, 4) * (1 if call == 0 else -2) + call,)


def _bytes(call: int) -> tuple[Any, ...]:
    return (np.array([200, 100, 7], np.uint8) if call == 0 else np.array([255, 255, 255], np.uint8),)


def _two(call: int) -> tuple[Any, ...]:
    return (
        (np.array([4, -7, 9, 3]), np.array([2, 2, 4, 1])) if call == 0 else (np.array([5, -7, 0, 1]), np.zeros(4, int))
    )


def _mask(call: int) -> tuple[Any, ...]:
    x = _floats(call)[0]
    return x, np.array([True, False, True, False]) if call == 0 else np.array([False, False, True, True])


IDIOMS: dict[str, Idiom] = {}


def idiom(
    arguments: Callable[[int], tuple[Any, ...]] = _floats, expected: str = "same"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        IDIOMS[function.__name__] = Idiom(function, arguments, expected)
        return function

    return note


def one_line(
    name: str, text: str, arguments: Callable[[int], tuple[Any, ...]] = _floats, expected: str = "same"
) -> None:
    """An idiom that returns one expression of ``a`` (and ``b``)."""
    names = "a, b" if len(arguments(0)) == 2 else "a"
    scope: dict[str, Any] = {"np": np, "math": math}
    exec(compile(f"def {name}({names}):\n    return {text}\n", f"<idiom {name}>", "exec"), scope)
    IDIOMS[name] = Idiom(scope[name], arguments, expected)


# -- numbers are copies ------------------------------------------------------------------------------------------


@idiom()
def swap_elements(a):
    t = a[0]
    a[0] = a[1]
    a[1] = t
    return a


@idiom()
def subtract_the_first(a):
    best = a[0]
    a -= best
    return a


@idiom()
def sum_from_the_first(a):
    s = a[0]
    for i in range(1, 4):
        s += a[i]
    return s


@idiom()
def number_in_place_is_another(a):
    s = a[0]
    r = s
    s += 10
    return r, s


@idiom()
def number_becomes_an_array(a):
    s = a[1]
    s += a
    return s, a


@idiom(_matrix)
def element_of_a_row(a):
    x = a[0, 1]
    a[0, 1] = 100
    return x


@idiom(_matrix)
def rows_of_a_loop_are_views(a):
    for row in a:
        row += row[0]
    return a


@idiom()
def elements_of_a_loop_are_numbers(a):
    total = 0.0
    for x in a:
        total += x
        a[0] = 1
    return total


@idiom()
def swap_by_tuple(a):
    a[0], a[1] = a[1], a[0]
    return a


@idiom(_matrix)
def swap_rows_by_tuple(a):
    a[0], a[1] = a[1], a[0]
    return a


@idiom(_matrix)
def swap_rows_by_indices(a):
    a[[0, 1]] = a[[1, 0]]
    return a


@idiom()
def running_maximum(a):
    for i in range(1, 4):
        a[i] = np.maximum(a[i], a[i - 1])
    return a


@idiom()
def sum_is_a_number(a):
    s = np.sum(a)
    t = s
    s += 1
    return t, s


# -- views and copies ----------------------------------------------------------------------------------------------


@idiom(_matrix)
def flatten_is_a_copy(a):
    b = a.flatten()
    b[0] = 99
    return a, b


@idiom(_matrix)
def ravel_is_a_view(a):
    b = a.ravel()
    b[0] = 99
    return a.copy()


@idiom(_matrix)
def ravel_of_a_transpose_is_a_copy(a):
    b = a.T.ravel()
    b[0] = 99
    return a.copy(), b


@idiom(_matrix)
def reshape_is_a_view(a):
    b = a.reshape(4, 3)
    b[0, 0] = 99
    return a.copy()


@idiom(_matrix)
def astype_is_a_copy(a):
    b = a.astype(np.float64)
    b[0] = 99
    return a, b


@idiom(_matrix)
def plus_is_a_copy(a):
    b = +a
    b[0] = 99
    return a, b


@idiom(_matrix)
def array_is_a_copy(a):
    b = np.array(a)
    b[0] = 99
    return a, b


@idiom(_matrix)
def asarray_is_no_copy(a):
    b = np.asarray(a)
    b[0] = 99
    return a


@idiom(_matrix)
def advanced_indices_are_a_copy(a):
    b = a[[0, 2]]
    b[0] = 99
    return a, b


@idiom(_matrix)
def a_row_is_a_view(a):
    b = a[1]
    b *= 2
    return a


@idiom(_matrix)
def a_column_is_a_view(a):
    b = a[:, 1]
    b += 1
    return a


@idiom(_matrix)
def transposed_writes(a):
    a.T[0] = 5
    return a


@idiom(_matrix)
def swapaxes_writes(a):
    np.swapaxes(a, 0, 1)[1] = 5
    return a


@idiom(_matrix)
def split_writes(a):
    left, right = np.split(a, 2, axis=1)
    left[:] = right
    return a


@idiom()
def reversed_and_read(a):
    return a[::-1] * 2


@idiom(expected="refused")
def reversed_is_returned(a):
    return a[::-1]


@idiom()
def reversed_copy(a):
    return a[::-1].copy()


@idiom(expected="refused")
def write_through_a_reversed_view(a):
    b = a[::-1]
    b[0] = 99
    return a


@idiom(expected="refused")
def read_a_reversed_view_after_a_write(a):
    b = a[::-1]
    a[0] = 99
    return b + 0


@idiom()
def write_to_a_reversed_slice(a):
    a[::-1] = np.arange(4.0)
    return a


@idiom(_matrix)
def write_to_a_reversed_part(a):
    a[2:0:-1, ::2] = np.array([[1.0, 2.0], [3.0, 4.0]])
    return a


@idiom()
def reverse_in_place(a):
    a[:] = a[::-1]
    return a


@idiom(_matrix)
def negative_steps(a):
    return a[2:0:-1, ::-2] + 0, a[::-1, 3:0:-1] * 1


@idiom(_matrix, "refused")
def write_through_flip(a):
    np.flip(a)[0] = 1
    return a


@idiom(_matrix, "refused")
def write_through_rot90(a):
    b = np.rot90(a)
    b[0] = 1
    return a


@idiom(_matrix)
def flips_that_are_read(a):
    return np.flip(a) + np.flipud(a), np.fliplr(a) * 2, np.rot90(a) + 0


@idiom()
def shift_by_overlapping_slices(a):
    a[1:] = a[:-1]
    return a


@idiom()
def add_overlapping_slices(a):
    a[1:] += a[:-1]
    return a


@idiom(_matrix)
def diagonal_is_read_only(a):
    np.diagonal(a)[0] = 1
    return a


@idiom()
def broadcast_is_read_only(a):
    b = np.broadcast_to(a, (2, 4))
    b[0] = 1
    return b


@idiom(_matrix)
def flat_is_read(a):
    return np.sum(a.flat)


@idiom(_matrix, "refused")
def flat_is_written(a):
    a.T.flat[0] = 99
    return a


@idiom(_matrix)
def meshgrid_copies(a):
    x, y = np.meshgrid(a[0], a[1])
    x[0] = 5
    return a, x, y


@idiom()
def a_view_is_returned(a):
    return a[1:3]


@idiom(_matrix)
def fill_diagonal_in_place(a):
    np.fill_diagonal(a, 7)
    return a


@idiom(_matrix)
def write_at_a_computed_index(a):
    i = np.argmax(a[:, 1])
    a[i] = 0
    a[0, i] = 5
    a[:, i] = np.arange(3.0)
    return a, i


@idiom(_matrix, "refused")
def write_through_a_computed_row(a):
    row = a[np.argmax(a[:, 1])]
    row += 1
    return a


@idiom()
def sort_in_place(a):
    a.sort()
    return a


@idiom()
def fill_in_place(a):
    a.fill(3)
    return a


# -- writes --------------------------------------------------------------------------------------------------------


@idiom(_mask)
def masked_write(a, b):
    a[b] = 0
    return a


@idiom(_mask)
def masked_in_place(a, b):
    a[b] *= 2
    return a


@idiom(_mask)
def where_of_a_ufunc_with_out(a, b):
    out = np.zeros(4)
    np.add(a, 1, out=out, where=b)
    return out


@idiom(_mask, "refused")
def where_of_a_ufunc_without_out(a, b):
    return np.add(a, 1, where=b)


@idiom(_mask, "refused")
def where_of_a_sum(a, b):
    return np.sum(a, where=b)


@idiom()
def out_is_an_argument(a):
    np.multiply(a, 2, out=a)
    return a


@idiom(_integers)
def float_into_integers_in_place(a):
    a += 1.5
    return a


@idiom(_integers)
def float_into_an_integer_element(a):
    a[0] = 2.7
    return a


@idiom()
def write_of_a_list(a):
    a[1:3] = [8, 9]
    return a


@idiom(_integers)
def ufunc_at(a):
    b = np.zeros(10)
    np.add.at(b, np.abs(a), 1)
    return b


@idiom(lambda call: (np.arange(6.0), [1, 2] if call == 0 else [3, 4]), "refused")
def append_to_a_list(a, b):
    b.append(a[0])
    return a


@idiom(lambda call: (np.arange(6.0) + call, {"x": np.ones(2)}), "refused")
def write_to_a_dictionary(a, b):
    b["y"] = a * 2
    return a


@idiom(lambda call: (np.arange(6.0) + call, {"x": np.ones(6)}))
def write_to_an_array_in_a_dictionary(a, b):
    b["x"] += a
    return b["x"] * 1


@idiom(lambda call: (np.arange(6.0) + call, [np.ones(6), np.zeros(6)]))
def write_to_an_array_in_a_list(a, b):
    b[1][:] = a
    return a * 2


# -- dtypes and numbers --------------------------------------------------------------------------------------------

one_line("sum_of_bytes", "a.sum()", _bytes)
one_line("cumsum_of_bytes", "np.cumsum(a)", _bytes)
one_line("prod_of_bytes", "np.prod(a)", _bytes)
one_line("bytes_wrap", "a + a", _bytes)
one_line("bytes_and_a_number", "a + 1, a * 2, a - 3", _bytes)
one_line("bytes_and_a_large_number", "a + 300", _bytes)
one_line("negative_bytes", "-a", _bytes)
one_line("mean_of_bytes", "np.mean(a), np.std(a), np.var(a)", _bytes)
one_line("square_of_integers", "np.square(a), np.abs(a), np.sign(a)", _integers)
one_line("rounding_of_integers", "np.rint(a), np.trunc(a), np.floor(a), np.ceil(a)", _integers)
one_line("square_of_int32", "np.square(a.astype(np.int32)), np.fabs(a)", _integers)
one_line("sign_of_nan", "np.sign(a)")
one_line("integer_power", "a ** 2, a ** 3", _integers)
one_line("negative_integer_power", "a ** -1", _integers)
one_line("power_of_an_array_of_integers", "2 ** a", _integers, "refused")
one_line("floor_division", "a // b, a % b, np.divmod(a, b), np.fmod(a, b)", _two)
one_line("floor_division_of_floats", "a // 0.1, a % 0.1, np.fmod(a, 0.3), a % -0.3")
one_line("division_of_integers", "a / 2, np.sqrt(np.abs(a)), a / np.float32(2)", _integers)
one_line("shifts", "a << 2, a >> 1, a << 70", _integers)
one_line("comparisons", "a > 1, a == a, (a > 0) & (a < 3), ~(a > 1)")
one_line("maximum_with_nan", "np.maximum(a, 1), np.fmax(a, 1), np.clip(a, 0, 2), a.max(), np.argmax(a), np.min(a)")
one_line("boolean_sums", "(a > 1).sum(), np.mean(a > 1), (a > 1) + (a > 2), np.any(a > 1)")
one_line("half_precision", "a.astype(np.float16) + 1, a.astype(np.float16).sum(), np.float16(2) * a")
one_line("numpys_numbers_are_strong", "a.astype(np.float32) + np.float64(1), a.astype(np.float32) + 1.0")
one_line("zero_dims_of_an_array", "np.array(3.0) + a, np.array(3.0)")
one_line("array_without_dims", "np.asarray(a[0]), a[0, ...], a[0]")
one_line(
    "median_and_percentiles",
    "np.median(a), np.percentile(a, 30), np.quantile(a, [0.1, 0.9])",
    lambda call: (np.array([3.0, 1.0, 2.0, 5.0 + call]),),
)
one_line(
    "mean_of_single",
    "np.mean(a.astype(np.float32)), np.sum(a.astype(np.float32))",
    lambda call: (np.array([3.0, 1.0, 2.0, 5.0 + call]),),
)
one_line("unique_of_floats", "np.unique(a)", expected="refused")
one_line(
    "unique_of_integers",
    "np.unique(a), np.unique(a, return_counts=True)",
    lambda call: (np.array([3, 1, 3, 5]) + call,),
)
one_line(
    "argsort_and_searchsorted",
    "np.argsort(a, kind='stable'), np.searchsorted(np.sort(a), 2.0)",
    lambda call: (np.array([3.0, 1.0, 2.0, 5.0 + call]),),
)
one_line("where_promotes", "np.where(a > 1, a, 0), np.where(a > 1, 1, 2), np.where(a > 1, np.float32(1), 2)")
one_line("lists_become_arrays", "np.array([a[0], 1, 2]), np.array([[a[0], a[1]], [0, 1]]), a + [1, 2, 3, 4]")
one_line("stacks", "np.stack([a, a]), np.concatenate([a, [1, 2]]), np.vstack((a, a)), np.hstack((a, 1.0))")
one_line("new_arrays", "np.zeros(3), np.ones_like(a), np.arange(3), np.full(2, a[0]), np.linspace(0, 1, 5)")
one_line("new_arrays_of_constants", "np.zeros(3), np.ones_like(a), np.arange(3), np.full(2, 7), np.linspace(0, 1, 5)")
one_line("ellipsis_and_new_dims", "a[..., None] * a[None, :], a[:, np.newaxis].shape, a.ndim, a.size, len(a)")
one_line("dtype_attribute", "np.zeros(3, dtype=a.dtype) + a.astype(a.dtype)[:3], a.dtype == np.float64")
one_line(
    "matrix_products", "a @ a.T, a.T @ a, np.dot(a, a[0]), np.einsum('ij,kj->ik', a, a), np.outer(a[0], a[1])", _matrix
)
one_line("norms", "np.linalg.norm(a), np.linalg.norm(a, axis=1), np.trace(a), np.linalg.norm(a, 1)", _matrix)
one_line(
    "reductions_by_axis", "a.sum(0), a.mean(axis=1), a.max(axis=(0, 1)), a.sum(1, keepdims=True), a.std(0)", _matrix
)
one_line("cumulative", "np.cumsum(a, axis=0), np.cumprod(a, 1), np.diff(a, axis=1), np.cumsum(a)", _matrix)
one_line("rolls_and_tiles", "np.roll(a, 1, axis=0), np.tile(a, 2), np.repeat(a, 2, axis=1), np.pad(a, 1)", _matrix)
one_line("math_functions", "a * math.sqrt(2.0), math.pi * a, a + math.floor(2.7)")
one_line("branch_on_a_value", "a if a[0] > 0 else -a", expected="refused")
one_line("python_numbers_of_values", "float(a[0]) * a")
one_line(
    "an_index_that_is_computed",
    "a[np.argmax(a)], a[np.argmin(a) - 1]",
    lambda call: (np.array([3.0, 1.0, 2.0, 5.0 * (1 - call)]),),
)
one_line("an_index_out_of_range", "a[7]")
one_line("shapes_that_do_not_fit", "a + np.zeros(3)")
one_line(
    "complex_numbers",
    "(a + 1j).real, np.abs(a + 1j), np.conj(a * 1j), (a * 1j) * (a + 2j)",
    lambda call: (np.array([3.0, 1.0 + call]),),
)
one_line("gradient_of_a_grid", "np.gradient(a), np.gradient(a, axis=0)", _matrix)
one_line("three_dims", "a.reshape(3, 2, 2).transpose(2, 0, 1), np.moveaxis(a.reshape(3, 2, 2), 0, -1).sum(1)", _matrix)
one_line("triangles", "np.triu(a), np.tril(a, -1), np.eye(3) @ a, np.diag(a[0]), np.diag(a) + 0", _matrix)
one_line(
    "boolean_selection",
    "a[a > 1], a[a > 1].sum(), np.nonzero(a > 1), np.count_nonzero(a > 1)",
    lambda call: (np.array([3.0, 1.0, 2.0, 5.0 * (1 - call)]),),
)
one_line(
    "a_generator_is_drawn_from",
    "a + b.random(4)",
    lambda call: (np.arange(4.0), np.random.default_rng(call)),
    "refused",
)


@idiom(_integers, "refused")
def a_float_number_among_integers(a):
    a[1] = a[0] / 2  # NumPy raises an error for infinities, NaN and what does not fit
    return a


@idiom(_integers, "refused")
def filled_with_a_float_number(a):
    a.fill(a[0] / 2)
    return a


@idiom(_integers)
def a_float_number_cast_and_stored(a):
    a[1:3] = (a[0] / 2).astype(np.int64)
    return a


@idiom(_integers)
def a_float_number_at_several_indices(a):
    a[[0, 2]] = a[1] / 2
    return a


@idiom(_bytes)
def a_float_number_among_bytes(a):
    a[0] = a[1] / 2
    return a


Pair = namedtuple("Pair", "left right")


@idiom()
def a_named_tuple_is_returned(a):
    return Pair(a + 1, a.sum())


@idiom(lambda call: (np.matrix([[1.0, 2.0], [3.0, 4.0]]),), "refused")
def a_matrix(a):
    return a * a


@idiom(lambda call: (np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False]),), "refused")
def a_masked_array(a):
    return a.sum()


@idiom(lambda call: (np.array([(1.0, 2)], dtype=[("x", float), ("y", int)]),), "refused")
def a_structured_array(a):
    return a["x"] * 2


def source_of(name: str) -> str:
    """The text of an idiom."""
    function = IDIOMS[name].function
    if function.__code__.co_filename.startswith("<idiom"):
        return f"returns an expression: {name}"
    return inspect.getsource(function)
