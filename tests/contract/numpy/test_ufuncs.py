"""Every ufunc on every dtype, with special values: on tensors it gives what NumPy gives, or it is refused."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np
import pytest
import torch

from opwright.contract.numpy import ufuncs
from opwright.contract.numpy.array import Array, numpy_on_tensors
from opwright.contract.numpy.calls import run_operator
from opwright.contract.numpy.comparison import values_differ
from opwright.contract.numpy.facts import NotLikeNumpyError, facts_of, is_scalar

NUMPY = numpy_on_tensors()[id(np)]
DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
NAMES = sorted(
    {getattr(np, name).__name__ for name in dir(np) if isinstance(getattr(np, name), np.ufunc)}
    - {"divmod", "frexp", "modf", "matmul", "vecdot", "matvec", "vecmat", "isnat"}
)


def special_values(dtype: str) -> Any:
    kind = np.dtype(dtype).kind
    if kind == "b":
        return np.array([True, False, True])
    if kind in "iu":
        limits = np.iinfo(dtype)
        return np.array([0, 1, 3, limits.max, limits.min, limits.max // 2], dtype)
    if kind == "f":
        return np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.5, 0.3], dtype)
    return np.array([0, 1 + 2j, -1j, np.nan, 2 - 3j], dtype)


def outcome(function: Any, operands: list[Any]) -> Any:
    try:
        with np.errstate(all="ignore"):
            return function(*operands)
    except Exception as error:
        return error


def what_differs(name: str, dtypes: tuple[str, ...]) -> str:
    """What is different from NumPy; "" for the same, "refused" for an error."""
    operands = [special_values(dtype) for dtype in dtypes]
    if len(operands) == 2:
        operands[0] = operands[0][:, None]
    expected = outcome(getattr(np, name), operands)
    try:
        function = getattr(NUMPY, name)
    except AttributeError:
        return "refused"
    came = outcome(function, [Array(torch.from_numpy(operand.copy())) for operand in operands])
    if isinstance(came, Exception):
        return "" if isinstance(expected, Exception) else "refused"
    if isinstance(expected, Exception):
        return f"no error, NumPy {type(expected).__name__}"
    values = came.tensor.numpy()
    if (values.dtype, values.shape) != (expected.dtype, expected.shape):
        return f"{values.dtype}{values.shape}, NumPy {expected.dtype}{expected.shape}"
    with np.errstate(all="ignore"):
        return values_differ(expected, values, name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_it_is_numpys_for_every_dtype_or_refused(name: str) -> None:
    found = {
        dtypes: difference
        for dtypes in itertools.product(DTYPES, repeat=getattr(np, name).nin)
        if (difference := what_differs(name, dtypes)) not in ("", "refused")
    }
    assert found == {}


def test_most_are_not_refused() -> None:
    refused = {
        name
        for name in NAMES
        if what_differs(name, ("float64",) * getattr(np, name).nin) == "refused"
        and what_differs(name, ("int64",) * getattr(np, name).nin) == "refused"
    }
    assert refused <= {"bitwise_count", "cbrt", "ldexp", "reciprocal", "spacing"}


def test_a_ufunc_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert what_differs("sign", ("float64",)) == ""
    monkeypatch.setitem(ufuncs.UFUNCS, "sign", torch.sign)  # 0 for a NaN
    assert "NumPy's nan" in what_differs("sign", ("float64",))
    monkeypatch.setitem(ufuncs.UFUNCS, "floor_divide", lambda a, b: torch.floor(a / b))  # 10 for 1.0 // 0.1
    assert what_differs("floor_divide", ("float64", "float64")) != ""


@pytest.mark.parametrize(
    "reduction", ["sum", "prod", "cumsum", "cumprod", "mean", "std", "var", "max", "argmin", "ptp"]
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore")
def test_reductions_are_numpys_or_refused(reduction: str, dtype: str) -> None:
    values = special_values(dtype)[1:3] if np.dtype(dtype).kind in "iub" else np.array([1.5, 0.25, 3.0], dtype)
    expected = outcome(getattr(np, reduction), [values])
    came = outcome(getattr(NUMPY, reduction), [Array(torch.from_numpy(values.copy()))])
    if isinstance(came, Exception):
        assert isinstance(expected, Exception) or isinstance(came, NotImplementedError | RuntimeError)
        return
    assert came.tensor.numpy().dtype == expected.dtype
    assert values_differ(np.asarray(expected), came.tensor.numpy(), reduction) == ""
    assert is_scalar(came.tensor) == isinstance(expected, np.generic)


def test_casts_in_place_follow_numpys_rule() -> None:
    integers = Array(torch.arange(3))
    with pytest.raises(TypeError, match="Cannot cast"):
        integers += 1.5
    integers += 2
    assert integers.tensor.tolist() == [2, 3, 4]
    with pytest.raises(ValueError, match="non-broadcastable"):
        integers += Array(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(OverflowError, match="300 out of bounds for uint8"):
        Array(torch.zeros(2, dtype=torch.uint8)) + 300


def test_views_that_torch_lacks_are_read_until_their_source_is_written() -> None:
    a = Array(torch.arange(4.0))
    view = a[::-1]
    assert (view + 0).tensor.tolist() == [3, 2, 1, 0]
    with pytest.raises(NotLikeNumpyError, match="negative step is a view in NumPy"):
        view[0] = 1
    a[0] = 9
    with pytest.raises(NotLikeNumpyError, match="the array was written since"):
        view + 0
    copy = a[::-1].copy()
    a[0] = 10
    assert (copy + 0).tensor.tolist() == [3, 2, 1, 9]
    assert facts_of(a[1:].tensor).memory is facts_of(a.tensor).memory


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int32, np.float16, np.float32, np.complex64])
@pytest.mark.parametrize("dims", [0, 1])
def test_powers_with_numbers_have_the_operators_dtype(dtype: Any, dims: int) -> None:
    array = np.ones((3,) * dims, dtype)
    for exponent in (0, 1, 2, 3, 0.5, 2.0):
        came = run_operator(operator.pow, (torch.as_tensor(array), exponent))
        assert str(came.dtype).removeprefix("torch.") == np.asarray(array**exponent).dtype.name, exponent
    added = run_operator(operator.add, (torch.as_tensor(array), True))
    assert str(added.dtype).removeprefix("torch.") == np.asarray(array + True).dtype.name
