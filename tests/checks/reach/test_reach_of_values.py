"""Faults that only some values show: at ties and zeros, at the ends of ranges, in runs of a mask; and right kernels."""

from __future__ import annotations

import math
from typing import Annotated

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float16, Float32, Int32, Int64, Num
from torch import Tensor

import opwright as ow
from tests.sampled import quick


def status_of(operator, kernel):
    operator.python(kernel, name="kernel")
    (verdict,) = ow.check(operator, checks=["values"], kernels=["kernel"]).verdicts
    return verdict.status, verdict.findings


def scores(name):
    @ow.op(f"reach_of_values::{name}")
    def masked_softmax(x: Float32[Tensor, "m n"], keep: Bool[Tensor, "m n"]) -> Float32[Tensor, "m n"]:
        return x.masked_fill(~keep, -math.inf).softmax(1).masked_fill(~keep, 0)

    return masked_softmax


def with_the_least_of(number):
    def kernel(x, keep):
        return (x.masked_fill(~keep, number).softmax(1) * keep).contiguous()

    return kernel


def in_tiles(x, keep):
    """Online; a first tile of which nothing is kept gives inf - inf."""
    x = x.masked_fill(~keep, -math.inf)
    top, total = x.new_full((len(x), 1), -math.inf), x.new_zeros(len(x), 1)
    for tile in x.split(32, 1) if x.shape[1] else ():
        new = torch.maximum(top, tile.amax(1, keepdim=True))
        total, top = total * (top - new).exp() + (tile - new).exp().sum(1, keepdim=True), new
    return torch.where(keep.any(1, keepdim=True), (x - top).exp() / total, 0).contiguous()


# Each is a whole check.
@pytest.mark.parametrize(
    ("kernel", "status"),
    quick(
        [
            (with_the_least_of(-1e4), "fail"),
            (in_tiles, "fail"),
            (with_the_least_of(-3e38), "pass"),
            (lambda x, keep: torch.where(keep, x.masked_fill(~keep, -math.inf).softmax(1), 0).contiguous(), "pass"),
        ],
        1,
        3,
    ),
)
def test_what_masks_leave_out_is_lower_than_any_score_and_may_fill_a_tile(kernel, status):
    found, findings = status_of(scores("masked_softmax"), kernel)
    assert found == status, findings


def quantised(name):
    @ow.op(f"reach_of_values::{name}")
    def quantised(
        x: Float32[Tensor, "m n"], step: Annotated[float, ow.values(one_of=(0.25, 0.1))]
    ) -> Int32[Tensor, "m n"]:
        return (x / step).round().clamp(-1e5, 1e5).int()

    return quantised


# Each is a whole check.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "status"),
    quick(
        [
            (lambda x, step: (x / step + 0.5).floor().clamp(-1e5, 1e5).int().contiguous(), "fail"),
            (
                lambda x, step: (x / step).abs().add(0.5).floor().mul(x.sign()).clamp(-1e5, 1e5).int().contiguous(),
                "fail",
            ),
            (lambda x, step: (x * (1 / step)).round().clamp(-1e5, 1e5).int().contiguous(), "pass"),
            (lambda x, step: (x / step).clamp(-1e5, 1e5).round().int().contiguous(), "pass"),
        ],
        0,
        2,
    ),
)
def test_a_number_half_way_between_integers_is_rounded_as_the_reference_rounds_it(kernel, status):
    found, findings = status_of(quantised("quantised"), kernel)
    assert found == status, findings


def thresholded(name):
    @ow.op(f"reach_of_values::{name}")
    def thresholded(x: Float32[Tensor, "*n"], least: float) -> Float32[Tensor, "*n"]:
        return torch.where(x >= least, x, -7.0)

    return thresholded


@pytest.mark.parametrize(
    ("kernel", "status"),
    [
        (lambda x, least: torch.where(x > least, x, -7.0).contiguous(), "fail"),
        (lambda x, least: torch.where(x < least, torch.where(x.isnan(), x, -7.0), x).contiguous(), "pass"),
    ],
)
def test_what_is_equal_to_a_threshold_is_on_the_reference_s_side(kernel, status):
    found, findings = status_of(thresholded("thresholded"), kernel)
    assert found == status, findings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "status"),
    [
        (lambda x: x / x.norm(dim=1, keepdim=True), "fail"),
        (lambda x: x * x.square().sum(1, keepdim=True).clamp_min(1e-24).rsqrt(), "pass"),
    ],
)
def test_rows_of_zeros_have_no_length_to_divide_by(kernel, status):
    @ow.op("reach_of_values::unit")
    def unit(x: Float32[Tensor, "m n"]) -> Float32[Tensor, "m n"]:
        return x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)

    found, findings = status_of(unit, lambda x: kernel(x).contiguous())
    assert found == status, findings


# Each is a whole check.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "status"), quick([(-1e4, "fail"), (-math.inf, "pass"), (torch.finfo(torch.float32).min, "pass")], 0, 1)
)
def test_a_maximum_may_be_lower_than_the_number_that_it_begins_with(start, status):
    @ow.op("reach_of_values::highest", where="n >= 1")
    def highest(x: Float32[Tensor, "m n"]) -> Float32[Tensor, " m"]:
        return x.amax(1)

    found, findings = status_of(highest, lambda x: x.amax(1).clamp_min(start))
    assert found == status, findings


@pytest.mark.parametrize(("last", "status"), [(0, "pass"), (1, "fail")])
def test_the_end_of_a_stated_range_is_among_the_values(last, status):
    @ow.op("reach_of_values::bins")
    def bins(
        u: Annotated[Float32[Tensor, " n"], ow.values(0, 1)], count: Annotated[int, ow.values(1, 9)]
    ) -> Int64[Tensor, " n"]:
        return (u * count).long().clamp(max=count - 1)

    found, findings = status_of(bins, lambda u, count: (u * count).long().clamp(max=count - 1 + last))
    assert found == status, findings


@pytest.mark.parametrize(
    ("kernel", "status"), [(lambda x, p: x * p, "fail"), (lambda x, p: x * p if p < 1 else 0 * x, "pass")]
)
def test_a_number_is_at_the_end_of_its_range_in_some_case(kernel, status):
    @ow.op("reach_of_values::kept")
    def kept(
        x: Annotated[Float32[Tensor, " n"], ow.values(-1, 1)], p: Annotated[float, ow.values(0, 1)]
    ) -> Float32[Tensor, " n"]:
        return x * p if p < 1 else torch.zeros_like(x)

    found, findings = status_of(kept, lambda x, p: kernel(x, p).contiguous())
    assert found == status, findings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "status"),
    [(lambda x: x.float().amax(1).to(x.dtype), "fail"), (lambda x: x.sort(1).values[:, -1].clone(), "pass")],
)
def test_integers_are_not_those_of_float32(kernel, status):
    @ow.op("reach_of_values::top", where="n >= 1")
    def top(x: Int64[Tensor, "m n"]) -> Int64[Tensor, " m"]:
        return x.amax(1)

    found, findings = status_of(top, kernel)
    assert found == status, findings


def affine(name):
    @ow.op(f"reach_of_values::{name}")
    def affine(
        x: Float32[Tensor, "m n"], w: Float32[Tensor, " n"] | None = None, b: Float32[Tensor, " n"] | None = None
    ) -> Float32[Tensor, "m n"]:
        y = x if w is None else x * w
        return (y if b is None else y + b).clone(memory_format=torch.contiguous_format)

    return affine


@pytest.mark.parametrize(
    ("kernel", "status"),
    [
        (lambda x, w, b: x.clone() if w is None else x * w if b is None else x * w + b, "fail"),
        (lambda x, w, b: x * w if b is None and w is not None else x + b if w is None and b is not None else 1 * x
         if w is None else x * w + b, "pass"),
    ],
)  # fmt: skip
def test_each_optional_argument_is_absent_alone(kernel, status):
    found, findings = status_of(affine("affine"), lambda x, w, b: kernel(x, w, b).contiguous())
    assert found == status, findings


# Each is a whole check.
@pytest.mark.slow
@pytest.mark.parametrize("axis", quick([0, 1, None], 1, 2))
def test_each_axis_that_may_broadcast_does_so_alone(axis):
    @ow.op("reach_of_values::sums")
    def sums(x: Float32[Tensor, "#m #n"], y: Float32[Tensor, "m n"]) -> Float32[Tensor, "m n"]:
        return x + y

    def kernel(x, y):
        if axis is not None and x.shape[axis] == 1 < y.shape[axis] and x.shape[1 - axis] > 1:
            return y.clone(memory_format=torch.contiguous_format)
        return (x + y).contiguous()

    found, findings = status_of(sums, kernel)
    assert found == ("pass" if axis is None else "fail"), findings


@pytest.mark.slow
@pytest.mark.parametrize("right", [True, False])
def test_what_is_equal_to_a_number_of_a_stated_range(right):
    @ow.op("reach_of_values::bucket")
    def bucket(
        x: Float32[Tensor, " n"], edges: Annotated[Float32[Tensor, " k"], ow.values(-2, 2, sorted=True)]
    ) -> Int64[Tensor, " n"]:
        return torch.bucketize(x, edges, right=True)

    found, findings = status_of(bucket, lambda x, edges: torch.bucketize(x, edges, right=right))
    assert found == ("pass" if right else "fail"), findings


def losses(name):
    @ow.op(f"reach_of_values::{name}")
    def losses(
        x: Float16[Tensor, "b c *n"], place: Annotated[Int64[Tensor, " b *n"], ow.values(0, "c - 1")]
    ) -> Float16[Tensor, " b *n"]:
        of_place = x.float().log_softmax(1).gather(1, place.unsqueeze(1)).squeeze(1)
        return (of_place * (1 - of_place.exp()) ** 2).half()  # a focal loss

    return losses


def of_place(x, place):
    return x.log_softmax(1).gather(1, place.unsqueeze(1)).squeeze(1)


# Each is a whole check.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "status"),
    quick(
        [
            (lambda x, place: (p := of_place(x, place)) * (1 - p.exp()) ** 2, "fail"),
            (lambda x, place: ((p := of_place(x.float(), place)) * (1 - p.exp().half().float()) ** 2).half(), "fail"),
            (lambda x, place: ((p := of_place(x.double(), place)) * torch.expm1(p) ** 2).half(), "pass"),
            (lambda x, place: ((p := of_place(x.float(), place)) * (p.exp() - 1).square()).half(), "pass"),
        ],
        0,
        3,
    ),
)
def test_what_is_left_of_a_sure_models_probabilities_is_not_rounded_away(kernel, status):
    found, findings = status_of(losses("losses"), kernel)
    assert found == status, findings


def counts(name):
    @ow.op(f"reach_of_values::{name}")
    def counts(x: Annotated[Float32[Tensor, " n"], ow.values(0, 1)]) -> Int64[Tensor, "10"]:
        return torch.bincount((x * 10).long().clamp(0, 9), minlength=10)

    return counts


# Each is a whole check.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "status"),
    quick(
        [
            (lambda x: torch.bincount((x * 10 - 0.5).round().long().clamp(0, 9), minlength=10), "fail"),
            (lambda x: torch.bincount((x[x < 1] * 10).long(), minlength=10), "fail"),
            (lambda x: torch.bincount((x * 10).floor().long().clamp_max(9), minlength=10), "pass"),
        ],
        0,
        2,
    ),
)
def test_values_of_a_range_lie_on_the_borders_of_bins(kernel, status):
    found, findings = status_of(counts("counts"), kernel)
    assert found == status, findings


def shrunk(name):
    @ow.op(f"reach_of_values::{name}")
    def shrunk(x: Float32[Tensor, "m n"], least: Annotated[float, ow.values(0, 2)] = 0.5) -> Float32[Tensor, "m n"]:
        return F.hardshrink(x, least)

    return shrunk


@pytest.mark.parametrize(
    ("kernel", "status"),
    quick(
        [
            (lambda x, least: torch.where(x.abs() < least, 0, x), "fail"),
            (lambda x, least: torch.where(x.abs() <= least, 0, x), "pass"),
            (lambda x, least: x * ((x > least) | (x < -least)), "pass"),
        ],
        0,
        1,
    ),
)
def test_what_is_equal_to_a_threshold_of_a_stated_range(kernel, status):
    found, findings = status_of(shrunk("shrunk"), lambda x, least: kernel(x, least).contiguous())
    assert found == status, findings


def huber(name):
    @ow.op(f"reach_of_values::{name}")
    def huber(x: Float32[Tensor, " n"], delta: Annotated[float, ow.values(0.1, 2)] = 1.0) -> Float32[Tensor, " n"]:
        return F.huber_loss(x, torch.zeros_like(x), reduction="none", delta=delta)

    return huber


@pytest.mark.slow
@pytest.mark.parametrize("compare", [torch.lt, torch.le])
def test_at_a_threshold_where_both_sides_meet_either_is_right(compare):
    def kernel(x, delta):
        return torch.where(compare(x.abs(), delta), x * x / 2, delta * (x.abs() - delta / 2))

    found, findings = status_of(huber("huber"), kernel)
    assert found == "pass", findings


def place_of_the_largest(name):
    @ow.op(f"reach_of_values::{name}", where="n >= 1")
    def place(x: Num[Tensor, "m n"]) -> Int64[Tensor, " m"]:
        return x.argmax(1)

    return place


@pytest.mark.parametrize(
    ("kernel", "status"),
    quick(
        [
            (lambda x: x.float().argmax(1), "fail"),
            (lambda x: (x if x.is_floating_point() else x.double()).argmax(1), "pass"),
            (lambda x: x.max(1).indices, "pass"),
        ],
        0,
        1,
    ),
)
def test_integers_that_are_one_number_in_float32_have_an_order(kernel, status):
    operator = place_of_the_largest("place")
    operator.python(kernel, name="kernel", dtypes=[torch.float32, torch.int32, torch.int64])
    (verdict,) = ow.check(operator, checks=["values"], kernels=["kernel"]).verdicts
    assert verdict.status == status, verdict.findings
