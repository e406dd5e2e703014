"""The shape language."""

from __future__ import annotations

import pytest

from opwright.contract.shapes.dims import (
    AnyDim,
    ExprDim,
    FixedDim,
    NamedDim,
    VariadicDim,
    describe,
    evaluate,
    names_in,
    parse_dims,
    rank_range,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("n", (NamedDim("n"),)),
        ("n k", (NamedDim("n"), NamedDim("k"))),
        ("  n   k ", (NamedDim("n"), NamedDim("k"))),
        ("#n", (NamedDim("n", broadcast=True),)),
        ("*batch n", (VariadicDim("batch"), NamedDim("n"))),
        ("n *rest", (NamedDim("n"), VariadicDim("rest"))),
        ("... n", (VariadicDim(None), NamedDim("n"))),
        ("3", (FixedDim(3),)),
        ("0", (FixedDim(0),)),
        ("rows=3", (FixedDim(3),)),
        ("rows=n", (NamedDim("n"),)),
        ("_", (AnyDim(),)),
        ("_ignored", (AnyDim(),)),
        ("n+1", (ExprDim("n+1"),)),
        ("(n-k)//s+1", (ExprDim("(n-k)//s+1"),)),
        ("out=n-k+1", (ExprDim("n-k+1"),)),
        ("min(n,k)", (ExprDim("min(n,k)"),)),
        ("2*n n%2 n**2 -n+9", (ExprDim("2*n"), ExprDim("n%2"), ExprDim("n**2"), ExprDim("-n+9"))),
    ],
)
def test_every_form_of_axis_is_read(text: str, expected: tuple[object, ...]) -> None:
    assert parse_dims(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("*a *b", "more than one"),
        ("... *a", "more than one"),
        ("n/2", "'n/2' uses more than"),
        ("n+", "'n+' is not an axis"),
        ("n.shape", "uses more than"),
        ("f(n)", "uses more than"),
        ("n+1.5", "uses more than"),
        ("[n]", "uses more than"),
        ("n+True", "uses more than"),
        ("__import__('os')", "uses more than"),
        ("*n+1", "is not an axis"),
    ],
)
def test_other_forms_are_refused_and_shown(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        parse_dims(text)
    assert message in str(error.value)


def test_an_expression_is_evaluated_with_python_s_rules() -> None:
    env = {"n": 7, "k": 3}
    assert evaluate("(n-k)//2+1", env) == 3
    assert evaluate("-n%k", env) == 2
    assert evaluate("max(n,k)*abs(k-n)**2", env) == 112


def test_the_names_of_an_expression_exclude_functions() -> None:
    assert names_in("min(n,k)+1") == {"n", "k"}


def test_a_name_that_is_not_known_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        evaluate("n+1", {})


def test_a_shape_is_shown_as_it_was_written() -> None:
    assert describe(parse_dims("*b #n 3 k+1 _ ")) == "[*b, #n, 3, k+1, _]"


def test_the_rank_range_counts_axes_beside_the_variadic_one() -> None:
    assert rank_range(parse_dims("n k")) == (2, False)
    assert rank_range(parse_dims("*b n")) == (1, True)
    assert rank_range(()) == (0, False)
