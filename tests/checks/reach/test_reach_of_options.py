"""Branches of kernels on what is absent and on options: each gets boundary sizes."""

from __future__ import annotations

import ctypes
from typing import Annotated, Literal

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.options import option_sets
from opwright.contract.inputs.text import parse_case
from tests.sampled import quick


def verdict_of(operator, kernel, *checks):
    operator.python(kernel, name="kernel")
    (verdict,) = ow.check(operator, checks=[*checks] or ["values"], kernels=["kernel"]).verdicts
    return verdict


def biased(name):
    @ow.op(f"reach_of_options::{name}")
    def biased(
        x: Float32[Tensor, "m n"], scale: Float32[Tensor, " n"] | None = None, bias: Float32[Tensor, " n"] | None = None
    ) -> Float32[Tensor, "m n"]:
        x = x if scale is None else x * scale
        return x.clone() if bias is None else x + bias

    return biased


def right(x, scale, bias):
    x = x.contiguous() if scale is None else x * scale
    return x.clone() if bias is None else x + bias


def few_columns_without_a_bias(x, scale, bias):
    out = right(x, scale, bias)
    if bias is None:
        out[:, 64:] = 0
    return out


def strides_of_rows_without_both(x, scale, bias):
    if bias is None and scale is None and x.numel():
        return x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset()).clone()
    return right(x, scale, bias)


@pytest.mark.parametrize(
    ("kernel", "status"),
    quick([(few_columns_without_a_bias, "fail"), (strides_of_rows_without_both, "fail"), (right, "pass")], 1, 2),
)
def test_a_branch_without_an_argument_has_sizes_past_a_tile_and_strides(kernel, status):
    verdict = verdict_of(biased(kernel.__name__), kernel)
    assert verdict.status == status, verdict.findings


def activated(name):
    @ow.op(f"reach_of_options::{name}")
    def activated(
        x: Float32[Tensor, "m n"], kind: Literal["relu", "tanh", "silu", "none"] = "relu", double: bool = False
    ) -> Float32[Tensor, "m n"]:
        x = {"relu": torch.relu, "tanh": torch.tanh, "silu": torch.nn.functional.silu, "none": torch.clone}[kind](x)
        return 2 * x if double else x

    return activated


def activate(x, kind, double):
    x = {"relu": torch.relu, "tanh": torch.tanh, "silu": torch.nn.functional.silu, "none": torch.clone}[kind](x)
    return (2 * x if double else x).contiguous()


def last_rows_of(chosen, is_double):
    def kernel(x, kind, double):
        out = activate(x, kind, double)
        if kind == chosen and double in is_double and len(x) > 100 and x.shape[1] > 100:
            out[128:] = 0  # only the corner of two long dims
        return out

    return kernel


@pytest.mark.parametrize(
    ("chosen", "is_double", "status"),
    quick(
        [
            *((kind, (True, False), "fail") for kind in ("relu", "tanh", "silu", "none")),
            ("relu", (True,), "fail"),
            ("", (), "pass"),
        ],
        2,
        5,
    ),
)
def test_each_choice_has_all_dims_past_a_tile(chosen, is_double, status):
    verdict = verdict_of(activated(f"of_{chosen}_{len(is_double)}"), last_rows_of(chosen, is_double))
    assert verdict.status == status, verdict.findings


def test_memory_of_a_branch_is_guarded():
    @ow.op("reach_of_options::written_past")
    def shifted(x: Float32[Tensor, " n"], bias: Float32[Tensor, " n"] | None = None) -> Float32[Tensor, " n"]:
        return x.clone() if bias is None else x + bias

    def kernel(x, bias):
        if bias is not None:
            return x + bias
        out = torch.empty(len(x))
        if len(x) > 100:  # one too many
            ctypes.c_float.from_address(out.data_ptr() + 4 * len(x)).value = 0.0
        return out.copy_(x)

    verdict = verdict_of(shifted, kernel, "memory")
    assert verdict.status == "fail", verdict.findings


def test_a_text_of_options_is_read_and_decides():
    operator = activated("texts")
    chosen = [c for c in cases(operator.contract, "quick") if c.options]
    assert {dict(c.options)["kind"] for c in chosen} == {"relu", "tanh", "silu", "none"}
    assert {dict(c.options)["double"] for c in chosen} == {"True", "False"}
    for case in chosen:
        assert parse_case(operator.contract, str(case)) == case
        _, kind, double = arguments_of(operator.contract, case, "cpu")
        assert {"kind": kind, "double": str(double)} == dict(case.options)
    with pytest.raises(ow.errors.CheckError, match="kind=gelu"):
        parse_case(operator.contract, "m=2 n=3 kind=gelu")


def test_few_options_have_all_combinations_and_many_have_each_value():
    @ow.op("reach_of_options::flags")
    def flags(
        x: Float32[Tensor, " n"], a: bool, b: bool, p: Annotated[float, ow.values(0.0, 1.0)], c: bool, d: bool
    ) -> Float32[Tensor, " n"]:
        return x * (a + 2 * b + p + c - d)

    sets = [dict(s) for s in option_sets(flags.contract)]
    assert len(sets) <= 6
    assert all({s[name] for s in sets} == {"True", "False"} for name in "abcd")
    assert "p" not in sets[0]


def test_an_argument_that_matters_only_where_another_is_absent_is_no_warning():
    @ow.op("reach_of_options::either")
    def either(
        x: Float32[Tensor, "m n"], usual: Float32[Tensor, " n"], own: Float32[Tensor, " n"] | None = None
    ) -> Float32[Tensor, "m n"]:
        return x * (usual if own is None else own)

    verdict = verdict_of(either, lambda x, usual, own: x * (usual if own is None else own), "contract")
    assert verdict.status == "pass", verdict.findings


def test_an_argument_that_matters_only_with_an_option_is_no_warning_and_one_that_never_does_is():
    @ow.op("reach_of_options::weighted")
    def weighted(
        x: Float32[Tensor, "m n"],
        w: Float32[Tensor, " n"],
        unused: Float32[Tensor, " n"],
        how: Literal["a", "b", "c", "d", "weighted"] = "a",
    ) -> Float32[Tensor, "m n"]:
        return x * w if how == "weighted" else x.clone()

    verdict = verdict_of(weighted, lambda x, w, unused, how: x * w if how == "weighted" else x.clone(), "contract")
    assert verdict.status == "warning"
    assert ["'unused'" in f.message for f in verdict.findings] == [True]


def test_a_gradient_of_a_list_has_more_than_the_usual_tensors():
    @ow.op("reach_of_options::squares")
    def squares(x: list[Float32[Tensor, " _"]]) -> Float32[Tensor, ""]:
        return torch.stack([t.square().sum() for t in x]).sum() if x else torch.zeros(())

    @squares.register_autograd
    def _(ctx, grad):
        return [2 * grad * t if i < 3 else torch.zeros_like(t) for i, t in enumerate(ctx.saved)]

    verdict = verdict_of(squares, lambda x: torch.stack([t.square().sum() for t in x]).sum(), "gradients")
    assert verdict.status == "fail", verdict.findings
