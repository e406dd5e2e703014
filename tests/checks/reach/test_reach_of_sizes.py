"""Faults that only some sizes show, and some magnitudes in float16; and right kernels with such limits inside."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float, Float16, Float32
from torch import Tensor

import opwright as ow
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.sizes import base_case, whole_beside_past
from tests.sampled import quick


def status_of(operator, kernel):
    operator.python(kernel, name="kernel")
    (verdict,) = ow.check(operator, checks=["values"], kernels=["kernel"]).verdicts
    return verdict.status, verdict.findings


def causal(name):
    @ow.op(f"reach_of_sizes::{name}", where=["s >= 1", "t >= 1"])
    def causal_sums(a: Float32[Tensor, "s d"], b: Float32[Tensor, "t d"]) -> Float32[Tensor, "s d"]:
        """The sums of the rows of b up to each row of a, whose last one is beside the last one of b."""
        s, t = len(a), len(b)
        seen = torch.arange(t) <= torch.arange(s)[:, None] + (t - s)
        return a + seen.to(b.dtype) @ b

    return causal_sums


def in_tiles(tile, last):
    """By tiles of queries; ``last`` is the end of the loop over keys."""

    def kernel(a, b):
        out, s, t = a.clone(), len(a), len(b)
        for start in range(0, s, tile):
            rows = torch.arange(start, min(start + tile, s))
            for k in range(0, max(0, min(last(start, tile, s, t), t)), tile):
                columns = torch.arange(k, min(k + tile, t))
                seen = columns <= rows[:, None] + (t - s)
                out[start : start + tile] += seen.to(b.dtype) @ b[columns]
        return out

    return kernel


def rounded_up(start, tile, s, t):
    return start + tile + t - s


def a_tile_too_few_where_only_keys_have_a_remainder(start, tile, s, t):
    return start + tile + t - s - (t % tile if s % tile == 0 and t > s else 0)


@pytest.mark.slow
@pytest.mark.parametrize("tile", quick([16, 32, 64], 2))
def test_a_whole_tile_of_queries_beside_a_key_too_many(tile):
    found, findings = status_of(
        causal(f"wrong_{tile}"), in_tiles(tile, a_tile_too_few_where_only_keys_have_a_remainder)
    )
    assert found == "fail", findings


@pytest.mark.slow
def test_a_loop_that_ends_where_it_should_is_left_alone():
    found, findings = status_of(causal("right"), in_tiles(64, rounded_up))
    assert found == "pass", findings


def test_each_dim_is_a_whole_tile_beside_each_other_one_that_is_not():
    @ow.op("reach_of_sizes::product")
    def product(a: Float32[Tensor, "m k"], b: Float32[Tensor, "k n"]) -> Float32[Tensor, "m n"]:
        return a @ b

    found = [dict(c.sizes) for c in whole_beside_past(product.contract, base_case(product.contract))]
    pairs = {(x, y) for sizes in found for x in sizes for y in sizes if (sizes[x], sizes[y]) == (128, 129)}
    assert len(pairs) == 6
    assert len(found) == 3


def test_of_many_dims_a_few_cases_have_all_pairs_of_the_last_ones():
    @ow.op("reach_of_sizes::attention")
    def attention(q: Float[Tensor, "b h s d"], k: Float[Tensor, "b h t d"]) -> Float[Tensor, "b h s t"]:
        return q @ k.mT

    found = [dict(c.sizes) for c in whole_beside_past(attention.contract, base_case(attention.contract))]
    assert len(found) <= 6
    for x, y in (("s", "t"), ("t", "s"), ("s", "d"), ("d", "s"), ("t", "d"), ("d", "t")):
        assert any((sizes[x], sizes[y]) == (64, 65) for sizes in found)
    before = len(cases(attention.contract, "quick"))
    assert len(found) < 0.04 * before


def in_launches(most, count):
    """So many tensors in each launch, of which a table has room for ``count``."""

    def kernel(x):
        out = torch.zeros(len(x))
        for first in range(0, len(x), most):
            for i, t in list(enumerate(x))[first : first + min(most, count)]:
                out[i] = t.square().sum()
        return out

    return kernel


@pytest.mark.parametrize(
    ("most", "count", "status"), quick([(110, 48, "fail"), (1000, 110, "fail"), (48, 48, "pass")], 0, 2)
)
def test_a_table_of_many_tensors_has_an_end(most, count, status):
    @ow.op(f"reach_of_sizes::norm_{most}_{count}")
    def norm(x: list[Float32[Tensor, " _"]]) -> Float32[Tensor, ""]:
        return torch.stack([t.square().sum() for t in x]).sum() if x else torch.zeros(())

    found, findings = status_of(norm, lambda x: in_launches(most, count)(x).sum())
    assert found == status, findings


def rms(name):
    @ow.op(f"reach_of_sizes::{name}", where="n >= 1")
    def rms(x: Float16[Tensor, "m n"]) -> Float16[Tensor, "m n"]:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).half()

    return rms


def squares_in_half(x):
    mean = (x * x).float().mean(-1, keepdim=True)
    return (x.float() * torch.rsqrt(mean + 1e-6)).half()


def squares_in_half_up_to_the_largest(x):
    """The squares are rounded to half precision, and those that it does not have are the largest that it has."""
    mean = (x * x).clamp(max=65504).float().mean(-1, keepdim=True)
    return (x.float() * torch.rsqrt(mean + 1e-6)).half()


def scaled_first(x):
    largest = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-7)
    small = x.float() / largest
    return (small * torch.rsqrt(small.square().mean(-1, keepdim=True) + 1e-6 / largest.square())).half()


@pytest.mark.parametrize(
    ("kernel", "status"),
    quick([(squares_in_half, "fail"), (squares_in_half_up_to_the_largest, "fail"), (scaled_first, "pass")], 1, 2),
)
def test_squares_past_the_largest_number_of_float16(kernel, status):
    found, findings = status_of(rms(f"rms_{kernel.__name__}"), kernel)
    assert found == status, findings


@pytest.mark.slow
def test_a_reference_in_half_may_overflow_and_a_kernel_need_not():
    @ow.op("reach_of_sizes::length", where="n >= 1")
    def length(x: Float16[Tensor, "m n"]) -> Float16[Tensor, " m"]:
        return (x * x).sum(-1).sqrt()

    found, findings = status_of(length, lambda x: x.float().square().sum(-1).sqrt().half())
    assert found == "pass", findings


def test_other_dtypes_have_no_such_case():
    @ow.op("reach_of_sizes::twice")
    def twice(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x

    huge = [c for c in cases(twice.contract, "quick") if c.values == "huge"]
    assert [c.dtype for c in huge] == [torch.float16]
