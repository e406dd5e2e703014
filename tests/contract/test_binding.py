"""A call's arguments against the contract, on every path to a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

import opwright as ow
from opwright.errors import ArgumentError


def linear(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::linear")
    def linear(
        x: Float[Tensor, "*b k"], w: Float[Tensor, "m k"], bias: Float[Tensor, " m"] | None = None, scale: float = 1.0
    ) -> Float[Tensor, "*b m"]:
        return torch.nn.functional.linear(x, w, bias) * scale

    @linear.python(name="plain")
    def _(x, w, bias, scale):  # type: ignore[no-untyped-def]
        return torch.nn.functional.linear(x, w, bias) * scale

    return linear


Way = Callable[[ow.Op], Callable[..., Any]]
ways = pytest.mark.parametrize(
    "way",
    [
        pytest.param(lambda op: op, id="op"),
        pytest.param(lambda op: op.overload, id="torch.ops"),
        pytest.param(lambda op: op.kernels["plain"], id="kernel"),
    ],
)


@ways
@pytest.mark.parametrize(
    ("x", "w", "bias", "expected_message"),
    [
        ((2, 3), (4,), None, "argument 'w' must have 2 dims [m, k], got 1: [4]"),
        ((), (4, 3), None, "argument 'x' must have at least 1 dim [*b, k], got 0: []"),
        ((2, 3), (4, 5), None, "dim 'k' of argument 'w' must be 3 (as in argument 'x'), got 5"),
        ((2, 3), (4, 3), (5,), "dim 'm' of argument 'bias' must be 4 (as in argument 'w'), got 5"),
        ((2, 3), (4, 3), (4, 1), "argument 'bias' must have 1 dim [m], got 2: [4, 1]"),
    ],
)
def test_a_wrong_shape_says_the_same_on_every_way(
    way: Way, x: Any, w: Any, bias: Any, expected_message: str, namespace: str
) -> None:
    call = way(linear(namespace))
    with pytest.raises(ArgumentError) as error:
        call(torch.randn(x), torch.randn(w), None if bias is None else torch.randn(bias))
    assert error.value.message == f"{namespace}::linear: {expected_message}"
    assert error.value.fix


@ways
def test_a_wrong_dtype_names_the_class_and_what_came(way: Way, namespace: str) -> None:
    with pytest.raises(ArgumentError) as error:
        way(linear(namespace))(torch.ones(2, 3, dtype=torch.int32), torch.ones(4, 3))
    assert f"{namespace}::linear: argument 'x' must be Float, got int32" in error.value.message
    assert "x.to(torch." in error.value.fix


@ways
def test_mixed_dtypes_name_both_arguments(way: Way, namespace: str) -> None:
    with pytest.raises(ArgumentError) as error:
        way(linear(namespace))(torch.ones(2, 3), torch.ones(4, 3, dtype=torch.float64))
    assert (
        "argument 'w' must be float32, as 'x' is, got float64; all Float arguments share one dtype"
        in error.value.message
    )
    assert "w.to(torch.float32)" in error.value.fix


@ways
def test_mixed_devices_name_both_arguments(way: Way, namespace: str) -> None:
    with pytest.raises(ArgumentError) as error:
        way(linear(namespace))(torch.ones(2, 3), torch.ones(4, 3, device="meta"))
    assert "argument 'w' must be on cpu, as 'x' is, got meta" in error.value.message
    assert "w.to('cpu')" in error.value.fix


@ways
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_mkldnn"])
def test_another_layout_is_refused_even_after_a_dense_call_of_the_same_shape(
    way: Way, layout: str, namespace: str
) -> None:
    call = way(linear(namespace))
    x, w = torch.ones(2, 3), torch.ones(4, 3)
    call(x, w)
    with pytest.raises(ArgumentError, match="argument 'x' must be a strided tensor, got layout") as error:
        call(getattr(x, layout)(), w)
    assert "to_dense" in error.value.fix


@pytest.mark.parametrize("way", ["op", "kernel"])
@pytest.mark.parametrize(
    ("arguments", "expected_message"),
    [
        ((np.ones((2, 3)), torch.ones(4, 3)), "argument 'x' must be a tensor, got ndarray"),
        ((None, torch.ones(4, 3)), "argument 'x' must be a tensor, got NoneType"),
        ((torch.ones(2, 3), [1.0]), "argument 'w' must be a tensor, got list"),
        ((torch.ones(2, 3), torch.ones(4, 3), "b"), "argument 'bias' must be a tensor or None, got str 'b'"),
        ((torch.ones(2, 3), torch.ones(4, 3), None, "2"), "argument 'scale' must be a float, got str '2'"),
        ((torch.ones(2, 3), torch.ones(4, 3), None, True), "argument 'scale' must be a float, got bool True"),
        ((torch.ones(2, 3), torch.ones(4, 3), None, {}), "argument 'scale' must be a float, got dict"),
    ],
)
def test_a_wrong_kind_names_what_came(
    way: str, arguments: tuple[Any, ...], expected_message: str, namespace: str
) -> None:
    op = linear(namespace)
    with pytest.raises(ArgumentError) as error:
        (op if way == "op" else op.kernels["plain"])(*arguments)
    assert expected_message in error.value.message
    assert "the contract is" in error.value.fix


def test_a_wrong_kind_is_said_in_the_contract_s_words_when_the_dispatcher_judges_first(namespace: str) -> None:
    op = linear(namespace)
    with pytest.raises(ArgumentError, match="argument 'w' must be a tensor"):
        op(torch.ones(2, 3, requires_grad=True), "w")


@pytest.mark.parametrize(
    ("args", "kwargs", "expected_message"),
    [
        ((), {}, "'x', 'w' must be given"),
        ((1, 2, 3, 4, 5), {}, "must get at most 4 positional arguments, got 5"),
        ((1, 2), {"x": 1}, "argument 'x' must be given once"),
        ((1, 2), {"y": 1}, "an argument must be one of"),
    ],
)
def test_a_wrong_count_or_name_shows_how_to_call_it(
    args: Any, kwargs: Any, expected_message: str, namespace: str
) -> None:
    op = linear(namespace)
    for call in (op, op.kernels["plain"]):
        with pytest.raises(ArgumentError) as error:
            call(*args, **kwargs)
        assert expected_message in error.value.message
        assert f"call it as {namespace}::linear(x: Float[*b k]" in error.value.fix


def test_optional_none_and_keywords_work_on_every_way(namespace: str) -> None:
    op = linear(namespace)
    x, w, bias = torch.randn(2, 5, 3), torch.randn(4, 3), torch.randn(4)
    for way in (op, op.overload, op.kernels["plain"]):
        torch.testing.assert_close(way(x, w), x @ w.T)
        torch.testing.assert_close(way(x, w, None, 2.0), x @ w.T * 2)
        torch.testing.assert_close(way(x, w=w, scale=2.0, bias=bias), (x @ w.T + bias) * 2)


def test_an_int_given_for_a_float_is_a_float_on_every_way(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(x: Int[Tensor, " n"], a: float, s: list[float], b: float | None = 3) -> Float[Tensor, " n"]:
        return x * a * s[0] * b

    @f.python(name="k")
    def _(x, a, s, b):  # type: ignore[no-untyped-def]
        return x * a * s[0] * b

    x = torch.arange(3)
    for way in (f, f.overload, f.kernels["k"]):
        assert way(x, 2, [1]).dtype == torch.float32
        assert way(x, 2, [1], 1).dtype == torch.float32


def test_an_expression_is_compared_with_its_value(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(out: Float[Tensor, " (n-k)//s+1"], x: Float[Tensor, " n"], k: int, s: int = 1) -> Float[Tensor, " n"]:
        return x + out.sum() * k

    f(torch.ones(3), torch.ones(7), 3, 2)
    with pytest.raises(ArgumentError) as error:
        f(torch.ones(4), torch.ones(7), 3, s=2)
    assert "dim '(n-k)//s+1' of argument 'out' must be 3" in error.value.message
    assert "k=3, n=7, s=2" in error.value.message
    assert "got 4" in error.value.message
    with pytest.raises(ArgumentError, match="divides by zero"):
        f(torch.ones(4), torch.ones(7), 3, s=0)


def test_an_expression_on_an_absent_optional_is_left_alone(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(x: Float[Tensor, " k+1"], b: Float[Tensor, " k"] | None) -> Float[Tensor, "..."]:
        return x + 1

    assert f(torch.zeros(4), None).sum() == 4
    with pytest.raises(ArgumentError, match="must be 3"):
        f(torch.zeros(4), torch.zeros(2))


def test_a_broadcast_dim_takes_size_one_and_its_own_size(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(x: Float[Tensor, "#n k"], y: Float[Tensor, "#n k"]) -> Float[Tensor, "n k"]:
        return x + y

    for n, m in ((4, 4), (1, 4), (4, 1), (1, 1)):
        assert f(torch.ones(n, 2), torch.ones(m, 2)).shape == (max(n, m), 2)
    with pytest.raises(ArgumentError, match="dim '#n' of argument 'y' must be 4"):
        f(torch.ones(4, 2), torch.ones(3, 2))
    with pytest.raises(ArgumentError, match="dim 'k' of argument 'y'"):
        f(torch.ones(4, 2), torch.ones(4, 1))


def test_variadic_dims_are_compared_whole(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(x: Float[Tensor, "*b n"], y: Float[Tensor, "*b"], z: Float[Tensor, "..."]) -> Float[Tensor, "*b n"]:
        return x * y[..., None]

    f(torch.ones(2, 3, 4), torch.ones(2, 3), torch.ones(7, 7))
    with pytest.raises(ArgumentError) as error:
        f(torch.ones(2, 3, 4), torch.ones(3, 2), torch.ones(()))
    assert "dim '*b' of argument 'y' must be [2, 3] (as in argument 'x'), got [3, 2]" in error.value.message


def test_a_fixed_dim_and_an_ignored_one(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(x: Float[Tensor, "3 _"], y: Float[Tensor, " _"]) -> Float[Tensor, "3"]:
        return x.sum(1)

    f(torch.ones(3, 5), torch.ones(9))
    with pytest.raises(ArgumentError, match=r"dim '3' of argument 'x' must be 3 \(fixed by the contract\)"):
        f(torch.ones(4, 5), torch.ones(9))


def test_the_tensors_of_a_list_are_named_by_their_index(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(xs: list[Float[Tensor, "_ k"]]) -> Float[Tensor, "_ k"]:
        return torch.cat(xs)

    assert f([torch.ones(1, 2), torch.ones(3, 2)]).shape == (4, 2)
    assert f((torch.ones(1, 2),)).shape == (1, 2)
    with pytest.raises(ArgumentError, match=r"dim 'k' of argument 'xs\[1\]' must be 2 \(as in argument 'xs\[0\]'"):
        f([torch.ones(1, 2), torch.ones(3, 3)])
    with pytest.raises(ArgumentError, match=r"argument 'xs\[1\]' must be a tensor, got int"):
        f([torch.ones(1, 2), 3])
    with pytest.raises(ArgumentError, match="argument 'xs' must be a list of tensors, got Tensor"):
        f(torch.ones(1, 2))
    with pytest.raises(ArgumentError, match="must get at least one tensor"):
        f([])


def test_every_tensor_absent_is_refused(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(x: Float[Tensor, " n"] | None = None) -> Float[Tensor, "..."]:
        return torch.zeros(()) if x is None else x + 1

    with pytest.raises(ArgumentError, match="must get at least one tensor, got none"):
        f()


def test_scalars_of_every_kind_are_judged(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(
        x: Float[Tensor, " n"], i: int, b: bool, s: str, dt: torch.dtype, sizes: list[int], o: int | None = None
    ) -> Float[Tensor, " n"]:
        return x * i

    good = {"i": 1, "b": True, "s": "a", "dt": torch.float32, "sizes": [1, 2], "o": None}
    f(torch.ones(3), **good)
    wrong = {
        "i": (1.0, "an int, got float 1.0"),
        "b": (1, "a bool, got int 1"),
        "s": (b"a", "a str, got bytes"),
        "dt": ("float32", "a torch.dtype, got str"),
        "sizes": ("12", "a list of ints, got str"),
        "o": ("1", "an int, got str '1'"),
    }
    for name, (value, expected_message) in wrong.items():
        with pytest.raises(ArgumentError) as error:
            f(torch.ones(3), **{**good, name: value})
        assert f"{namespace}::f: argument {name!r} must be {expected_message}" in error.value.message
    with pytest.raises(ArgumentError, match=r"argument 'sizes\[1\]' must be an int, got float 2.5"):
        f(torch.ones(3), **{**good, "sizes": [1, 2.5]})


def test_a_concrete_dtype_class_stands_for_itself(namespace: str) -> None:
    from jaxtyping import Float32

    @ow.op(f"{namespace}::f")
    def f(x: Float[Tensor, " n"], scale: Float32[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * scale.to(x.dtype)

    f(torch.ones(3, dtype=torch.bfloat16), torch.ones(3))
    with pytest.raises(ArgumentError, match="argument 'scale' must be Float32, got float64"):
        f(torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))


def test_meta_tensors_are_judged_too(namespace: str) -> None:
    op = linear(namespace)
    assert op(torch.ones(2, 3, device="meta"), torch.ones(4, 3, device="meta")).shape == (2, 4)
    with pytest.raises(ArgumentError, match="dim 'k' of argument 'w'"):
        op(torch.ones(2, 3, device="meta"), torch.ones(4, 5, device="meta"))


def test_an_argument_error_is_a_value_error(namespace: str) -> None:
    with pytest.raises(ValueError, match="→"):
        linear(namespace)(torch.ones(3))
